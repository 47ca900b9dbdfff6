"""What must hold for every job, however it went. `account` itself raises where a sum is wrong; here it is asked for anything."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import SECOND, Growth, histories, in_step, scratch

from ettrain.account.history import JobHistory
from ettrain.account.ledger import Account, account, number_of
from ettrain.jobreader import JobReader
from ettrain.lifecycle import EFFECTIVE, UNSAVED
from ettrain.testing import FakeHost, Story, stories
from ettrain.testing.stories import Deed, Plan


def accounted(story: Story, **how) -> tuple[Account, JobHistory]:
    with scratch() as folder:
        job = story.tell(folder, **how)
        history = JobReader(job.paths).read(job.wall_ns)
        return account(history), history


def same(left: JobHistory, right: JobHistory) -> bool:
    """Whether two readings of the same files are one; notes about unreadable files carry folder names."""
    return replace(left, notes=[]) == replace(right, notes=[])


def check(found: Account, job: JobHistory) -> None:
    """The laws again, from the outside, with arithmetic of their own."""
    ledger = found.ledger
    assert ledger.effective_ns + sum(leaf.wall_ns for leaf in ledger.leaves) == ledger.wall_ns
    assert ledger.effective_device_ns + sum(leaf.device_ns for leaf in ledger.leaves) == ledger.device_wall_ns
    assert all(sum(leaf.parts.values()) == leaf.wall_ns and leaf.wall_ns >= 0 and leaf.device_ns >= 0 for leaf in ledger.leaves)
    assert all(0 <= leaf.repeated_ns <= leaf.wall_ns for leaf in ledger.leaves)
    position = ledger.start
    for start, end, _ in ledger.slices:
        assert start == position < end
        position = end
    assert position == ledger.end
    assert all(a[2] != b[2] for a, b in zip(ledger.slices, ledger.slices[1:], strict=False))
    assert sum(end - start for start, end, path in ledger.slices if path == EFFECTIVE) == ledger.effective_ns
    assert sum(end - start for start, end, path in ledger.slices if path == UNSAVED) == ledger.unsaved_ns
    for frame, ranks in zip(found.frames, found.tiles, strict=True):
        assert frame.start <= frame.up <= frame.stopped <= frame.end
        for tiles in ranks:
            position = frame.start
            for start, end, _ in tiles:
                assert start == position < end
                position = end
            assert position == frame.end
    assert all(a.end <= b.start for a, b in zip(found.frames, found.frames[1:], strict=False))
    parts = ledger.time_to_start_ns + sum(i.time_to_recover_ns for i in ledger.incidents) + sum(ledger.residual.values())
    assert ledger.effective_ns + parts == ledger.wall_ns
    assert sum(number_of(ledger, kind) for kind in ("failure", "user_error", "preemption", "stop")) == len(ledger.incidents)
    inside = ledger.unsaved_ns - sum(incident.unsaved_ns for incident in ledger.incidents)
    assert inside >= 0
    for incident in ledger.incidents:
        assert incident.detect_ns + incident.reschedule_ns + incident.restart_ns <= incident.time_to_recover_ns
        assert incident.time_to_catch_up_ns is None or incident.time_to_catch_up_ns >= 0
    assert 0 <= ledger.at_risk_ns <= ledger.effective_ns
    assert ledger.time_to_shut_down_ns is None or ledger.time_to_shut_down_ns >= 0


@given(histories())
def test_no_history_breaks_a_law(job):
    check(account(job), job)


@given(histories(), st.randoms(use_true_random=False))
def test_the_order_of_ranks_changes_nothing(job, shuffled):
    turned = replace(job, attempts=[replace(attempt, ranks=shuffled.sample(attempt.ranks, len(attempt.ranks))) for attempt in job.attempts])
    assert account(turned).ledger == account(job).ledger


@given(stories())
def test_no_story_breaks_a_law(story):
    found, job = accounted(story)
    check(found, job)
    if not any(load.local_step for attempt in job.attempts for rank in attempt.ranks for load in rank.loads):
        assert sum(incident.unsaved_ns for incident in found.ledger.incidents) == found.ledger.unsaved_ns, "nothing was rolled back inside"


@given(stories(), st.lists(st.tuples(st.integers(0, 400), st.integers(-(10**6), 10**6)), max_size=4))
def test_setting_the_wall_clock_while_a_job_runs_changes_nothing(story, steps):
    plain, _ = accounted(story)
    host = FakeHost(name="host-0", boot="fake-fake-0", steps=[(1 + at * SECOND, by * SECOND) for at, by in steps])
    stepped, _ = accounted(story, hosts=[host])
    assert stepped.ledger == plain.ledger


@given(stories(max_ranks=3), st.lists(st.tuples(st.integers(0, 10**4), st.integers(-(10**5), 10**5)), min_size=1, max_size=2))
def test_hosts_whose_clocks_disagree_are_put_on_one(story, clocks):
    story = in_step(story)
    boots = [FakeHost(name="host-0", boot="m-0")]
    boots += [FakeHost(name=f"host-{n}", boot=f"{'az'[n % 2]}-{n}", monotonic_0=mono * SECOND, skew_ns=skew * SECOND // 7) for n, (mono, skew) in enumerate(clocks, 1)]
    skewed, history = accounted(story, hosts=boots)
    stepping = [{rank.host for rank in attempt.ranks if rank.steps} for attempt in history.attempts]
    everyone = {rank.host for attempt in history.attempts for rank in attempt.ranks}
    linked = {"host-0"}.union(*(hosts for hosts in stepping if "host-0" in hosts))
    assume(everyone <= linked)
    flat = [replace(host, skew_ns=0, monotonic_0=1000 * SECOND) for host in boots]
    plain, _ = accounted(story, hosts=flat)
    assert [s[2] for s in skewed.ledger.slices] == [s[2] for s in plain.ledger.slices]
    assert skewed.ledger.slices == plain.ledger.slices
    assert skewed.ledger.effective_device_ns == plain.ledger.effective_device_ns


@given(stories(), st.integers(0, 10**6), st.booleans())
def test_reading_while_the_files_grow_ends_where_reading_at_once_does(story, seed, two_hosts):
    hosts = [FakeHost(name="host-0", boot="m-0"), FakeHost(name="host-1", boot="a-1", monotonic_0=5 * SECOND, skew_ns=20 * SECOND)][: 1 + two_hosts]
    with scratch() as folder:
        job = (in_step(story) if two_hosts else story).tell(folder, hosts=hosts)
        growth = Growth(job.paths.root, folder / "grown", seed)
        reader = JobReader(replace(job.paths, root=growth.target))
        while growth.grow():
            if growth.random.random() < 0.3:
                now = reader.read(job.wall_ns)
                check(account(now), now)
        growth.finish()
        grown, whole = reader.read(job.wall_ns), JobReader(job.paths).read(job.wall_ns)
        assert same(replace(grown, name="fake"), whole)
        assert same(reader.read(job.wall_ns), grown)


@given(stories(), st.integers(0, 10**6))
def test_torn_and_foreign_lines_are_counted_and_change_nothing_else(story, seed):
    chance = random.Random(seed)
    with scratch() as folder:
        job = story.tell(folder)
        before = JobReader(job.paths).read(job.wall_ns)
        added = 0
        for path in sorted(job.paths.root.rglob("*.jsonl")):
            lines = path.read_bytes().splitlines(keepends=True)
            for _ in range(chance.randint(0, 2)):
                lines.insert(chance.randint(1, len(lines)), chance.choice((b"garbage\n", b'{"k": 5}\n', b"[1]\n", b"\xff\xfe\n", b"\n", b'{"k":"span","t":1\n')))
                added += 1
            if chance.random() < 0.5:
                lines.append(b'{"k":"span","t":')
                added += 1
            path.write_bytes(b"".join(lines))
        after = JobReader(job.paths).read(job.wall_ns)
        assert after.torn_lines == before.torn_lines + added
        assert same(replace(after, torn_lines=before.torn_lines), before)


@st.composite
def resumptions(draw: st.DrawFn) -> tuple[Plan, int]:
    """An attempt that trains, saves and dies; and how many checkpoints it left."""
    kinds = draw(st.lists(st.sampled_from(("step", "step", "save", "stage")), min_size=1, max_size=8))
    seconds = draw(st.lists(st.integers(2, 5), min_size=len(kinds) + 2, max_size=len(kinds) + 2))
    deeds = [Deed(kind=kind, seconds=(s,), name="evaluation") for kind, s in zip(["step", *kinds, "save"], seconds, strict=True)]
    at = 2 + sum(deed.total(0) for deed in deeds) + draw(st.integers(0, 9))
    after = draw(st.integers(0, 5))
    plan = Plan(gap=0, restart=False, world=1, delays=(0,), interpreter=(1,), deeds=tuple(deeds), ending="die", at=at, after=after)
    return plan, sum(deed.kind == "save" for deed in deeds)


@given(resumptions())
def test_going_on_from_an_older_checkpoint_never_keeps_more(drawn):
    plan, saves = drawn
    kept = []
    for pick in range(-1, saves):
        deeds = (Deed(kind="load", seconds=(2,), pick=pick), Deed(kind="step", seconds=(3,)))
        again = Plan(gap=5, restart=False, world=1, delays=(0,), interpreter=(0,), deeds=deeds, ending="finish", teardown=(0,))
        found, _ = accounted(Story(plans=(plan, again)))
        kept.append(found.ledger.effective_ns)
    assert kept == sorted(kept)

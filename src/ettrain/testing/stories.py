"""Random jobs for property tests: a story is plain data, which can be told (written as a job's files) and reasoned about.

    @given(stories())
    def test_something(story): ...
        job = story.tell(folder)
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ettrain.errors import MissingExtraError
from ettrain.testing.fakejob import FakeAttempt, FakeJob
from ettrain.testing.fakerank import FakeCheckpoint, FakeHost, FakeRank, Vanished

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

START_STAGES: Final = (
    *("imports", "device_init", "process_group_init", "preproc_creation", "train_module_creation", "init_plugins"),
    *("get_first_batch_data", "evaluation", "checkpoint_load", "compile"),
)
STEADY_STAGES: Final = ("evaluation", "compile", "data_wait", "get_first_batch_data", "imports", "process_group_init")
USER_STAGES: Final = ("alpha", "beta", "evaluation", "compile")
_LONG: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """One thing that all ranks do, each in its own time; in whole seconds."""

    kind: str
    """'pause', 'stage', 'step', 'save', 'load'."""
    seconds: tuple[int, ...]
    """Per rank; of a stage with deeds inside, what follows those."""
    name: str = ""
    user: bool = False
    inside: tuple[Deed, ...] = ()
    compiling: int = 0
    """Of a step: an extra part at its begin."""
    commit_after: int | None = None
    """Of a save: asynchronous, durable so long after its blocking part."""
    pick: int = 0
    """Of a load: which of the checkpoints that there are then; < 0: one that the job did not save."""

    def total(self, rank: int) -> int:
        """How long it takes that rank."""
        return self.compiling + self.seconds[rank] + sum(deed.total(rank) for deed in self.inside)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One attempt."""

    gap: int
    """Seconds since the end of the one before."""
    restart: bool
    """torchrun restarted it within the launch of the one before."""
    world: int
    delays: tuple[int, ...]
    """Per rank: when its process begins."""
    interpreter: tuple[int, ...]
    """Per rank: how long its interpreter takes to start."""
    deeds: tuple[Deed, ...]
    ending: str
    """'finish', 'die', 'throw', 'hang', 'preempt', 'run'."""
    victim: int = 0
    at: int = 0
    """Seconds into the attempt at which the victim breaks."""
    after: int = 0
    """Seconds from the last instant of any rank, or from the victim's end, to the attempt's end."""
    teardown: tuple[int, ...] = ()

    @property
    def ranks(self) -> int:
        """Processes that come up."""
        return len(self.delays)


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """A whole job."""

    plans: tuple[Plan, ...]
    devices: int = 1

    def tell(self, folder: str | os.PathLike[str], name: str = "fake", *, hosts: Sequence[FakeHost] = ()) -> FakeJob:
        """Write it down as a job's files."""
        job = FakeJob(folder, name, hosts=hosts, devices_per_rank=self.devices)
        _Teller(self, job).tell()
        job.close()
        return job


@dataclass(slots=True)
class _Saved:
    checkpoint: FakeCheckpoint
    durable: int
    by: FakeRank

    def there(self, t: int) -> bool:
        return self.durable <= t and (self.by.gone_at is None or self.durable <= self.by.gone_at)


@dataclass(slots=True)
class _Teller:
    story: Story
    job: FakeJob
    saved: list[_Saved] = field(default_factory=list)
    picks: dict[int, FakeCheckpoint | None] = field(default_factory=dict)
    """What a load deed (by its place) means in the attempt being told: the same for all ranks."""

    def tell(self) -> None:
        attempt: FakeAttempt | None = None
        for number, plan in enumerate(self.story.plans):
            following = self.story.plans[number + 1] if number + 1 < len(self.story.plans) else None
            if attempt is None:
                self.job.wait(plan.gap)
                attempt = self.job.attempt(ranks=plan.ranks, world=plan.world, start=False)
            self._attempt(attempt, plan)
            if plan.ending == "run":
                self.job.go_on()
                return
            if following is not None and following.restart:
                attempt = attempt.restarted(ranks=following.ranks, world=following.world, start=False)
            else:
                _end(attempt, plan)
                attempt = None
        self.job.bye()

    def _attempt(self, attempt: FakeAttempt, plan: Plan) -> None:
        self.picks = {}
        begin = self.job.now
        for number, rank in enumerate(attempt.ranks):
            rank.pause(plan.delays[number])
            if plan.ending in ("die", "throw"):
                error = ("RuntimeError", "it broke") if plan.ending == "throw" else None
                gone = plan.at if number == plan.victim else plan.at + plan.after
                rank.dies(gone - plan.delays[number], -9 if number == plan.victim else None, error=error if number == plan.victim else None)
            rank.start(interpreter=plan.interpreter[number])
        for number, rank in enumerate(attempt.ranks):
            try:
                for place, deed in enumerate(plan.deeds):
                    self._do(rank, number, deed, (place,))
                if plan.ending in ("die", "throw"):
                    rank.pause(_LONG)
            except Vanished:
                pass
        if plan.ending in ("finish", "preempt"):
            for number, rank in enumerate(attempt.ranks):
                rank.exit(0 if plan.ending == "finish" else 143, teardown=plan.teardown[number])
        if plan.ending == "hang":
            attempt.sync()
            attempt.pause(plan.at)
        if plan.ending == "run":
            self.job.now = max([begin, *(rank.t for rank in attempt.ranks)])
            self.job.wait(plan.after)

    def _do(self, rank: FakeRank, number: int, deed: Deed, place: tuple[int, ...]) -> None:
        seconds = deed.seconds[number]
        if deed.kind == "pause":
            rank.pause(seconds)
        elif deed.kind == "step":
            rank.step(seconds, compiling=deed.compiling)
        elif deed.kind == "save" and number:
            rank.stage("checkpoint_save", seconds)
        elif deed.kind == "save":
            checkpoint = rank.save(seconds, commit_after=deed.commit_after)
            self.saved.append(_Saved(checkpoint, rank.t + (deed.commit_after or 0) * 1_000_000_000, rank))
        elif deed.kind == "load":
            rank.load(self._pick(rank, deed, hash(place)), seconds)
        else:
            rank.enter(deed.name, user=deed.user)
            for inner, within in enumerate(deed.inside):
                self._do(rank, number, within, (*place, inner))
            rank.pause(seconds)
            rank.leave()

    def _pick(self, rank: FakeRank, deed: Deed, place: int) -> FakeCheckpoint | None:
        if place not in self.picks:
            there = [saved for saved in self.saved if saved.there(rank.t)]
            self.picks[place] = there[deed.pick % len(there)].checkpoint if there and deed.pick >= 0 else None
        return self.picks[place]


def _end(attempt: FakeAttempt, plan: Plan) -> None:
    if plan.ending == "finish":
        attempt.end(0, after=plan.after)
    elif plan.ending == "preempt":
        attempt.end(143, after=plan.after, sent=("SIGTERM",))
    elif plan.ending == "hang":
        attempt.end(-9, reason="hang" if plan.after % 2 else "")
    else:
        attempt.end(1)


def stories(*, max_attempts: int = 4, max_ranks: int = 3, max_deeds: int = 8) -> SearchStrategy[Story]:
    """Strategy for `Story`.

    Raises:
        MissingExtraError: hypothesis is not installed.
    """
    try:
        from hypothesis import strategies as st
    except ImportError:
        raise MissingExtraError("testing", "a hypothesis strategy") from None
    return st.composite(_draw_story)(max_attempts=max_attempts, max_ranks=max_ranks, max_deeds=max_deeds)


def _draw_story(draw: Any, *, max_attempts: int, max_ranks: int, max_deeds: int) -> Story:
    from hypothesis import strategies as st

    attempts = draw(st.integers(1, max_attempts))
    plans: list[Plan] = []
    for number in range(attempts):
        plans.append(_draw_plan(draw, plans, last=number + 1 == attempts, max_ranks=max_ranks, max_deeds=max_deeds))
    return Story(plans=tuple(plans), devices=draw(st.sampled_from((1, 1, 2))))


def _draw_plan(draw: Any, before: list[Plan], *, last: bool, max_ranks: int, max_deeds: int) -> Plan:
    from hypothesis import strategies as st

    ranks = draw(st.integers(1, max_ranks))

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(low, high), min_size=ranks, max_size=ranks)))

    restart = bool(before) and before[-1].ending in ("die", "throw") and draw(st.booleans())
    delays, interpreter = each(0, 3), each(0, 2)
    deeds = _Deeds(draw, ranks, max_deeds).script(resumed=bool(before))
    ending = draw(st.sampled_from(("finish", "die", "throw", "hang", "preempt", "run") if last else ("die", "die", "throw", "hang", "preempt", "finish")))
    victim = draw(st.integers(0, ranks - 1))
    born = delays[victim] + interpreter[victim]
    whole = born + sum(deed.total(victim) for deed in deeds)
    at = draw(st.integers(born + 1, whole + 3)) if ending != "hang" else draw(st.integers(300, 600))
    soonest = max(0, *(delays[r] + interpreter[r] + 1 - at for r in range(ranks)))
    after = draw(st.integers(soonest, 60 if ending != "run" else max(10, soonest)))
    return Plan(
        gap=0 if restart else draw(st.integers(0, 50)),
        restart=restart,
        world=ranks + draw(st.sampled_from((0, 0, 0, 1))),
        delays=delays,
        interpreter=interpreter,
        deeds=deeds,
        ending=ending,
        victim=victim,
        at=at,
        after=after,
        teardown=each(0, 3),
    )


class _Deeds:
    """Draws what an attempt's ranks do. A step takes 2-5 s and no two pauses follow each other, so that nothing counts as a stall."""

    def __init__(self, draw: Any, ranks: int, most: int) -> None:
        self._draw, self._ranks, self._most = draw, ranks, most

    def script(self, *, resumed: bool) -> tuple[Deed, ...]:
        """Start stages, perhaps a load, then training with all that may interrupt it."""
        from hypothesis import strategies as st

        draw = self._draw
        start = [self._stage(START_STAGES, depth=1) if draw(st.booleans()) else self._pause() for _ in range(draw(st.integers(0, 4)))]
        if resumed and draw(st.integers(0, 3)):
            start.append(Deed(kind="load", seconds=self._seconds(1, 8), pick=draw(st.integers(-1, 5))))
        steady = [self._deed() for _ in range(draw(st.integers(0, self._most)))]
        if steady and draw(st.integers(0, 4)) == 0:
            steady = [Deed(kind="stage", name="epoch", user=True, seconds=self._seconds(0, 1), inside=tuple(steady))]
        return _no_long_silence([*start, *steady])

    def _seconds(self, low: int, high: int) -> tuple[int, ...]:
        from hypothesis import strategies as st

        return tuple(self._draw(st.lists(st.integers(low, high), min_size=self._ranks, max_size=self._ranks)))

    def _pause(self) -> Deed:
        return Deed(kind="pause", seconds=self._seconds(1, 4))

    def _stage(self, names: Sequence[str], *, depth: int) -> Deed:
        from hypothesis import strategies as st

        draw = self._draw
        user = draw(st.integers(0, 3)) == 0
        inside = tuple(self._stage(names, depth=depth - 1) for _ in range(draw(st.integers(0, 2)))) if depth else ()
        name = draw(st.sampled_from(USER_STAGES if user else names))
        return Deed(kind="stage", name=name, user=user, seconds=self._seconds(0 if inside else 1, 9), inside=inside)

    def _deed(self) -> Deed:
        from hypothesis import strategies as st

        draw = self._draw
        kind = draw(st.sampled_from(("step", "step", "step", "save", "save", "stage", "pause", "load")))
        if kind == "step":
            return Deed(kind="step", seconds=self._seconds(2, 5), compiling=draw(st.sampled_from((0, 0, 0, 3, 9))))
        if kind == "save":
            commit_after = draw(st.sampled_from((None, None, 0, 4, 15)))
            return Deed(kind="save", seconds=self._seconds(1, 5), commit_after=commit_after)
        if kind == "load":
            return Deed(kind="load", seconds=self._seconds(1, 5), pick=draw(st.integers(0, 5)))
        return self._stage(STEADY_STAGES, depth=1) if kind == "stage" else self._pause()


def _no_long_silence(deeds: list[Deed]) -> tuple[Deed, ...]:
    """The deeds without a pause that directly follows another."""
    kept: list[Deed] = []
    for deed in deeds:
        if deed.kind == "pause" and kept and kept[-1].kind == "pause":
            continue
        kept.append(deed)
    return tuple(kept)

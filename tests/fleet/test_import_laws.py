"""Whatever a goodput log lacks or repeats, it is imported without breaking a law, or refused in good order."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from goodput_jobs import ORIGIN_S, Recording
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ettrain.account.ledger import account
from ettrain.fleet.goodput import import_goodput
from ettrain.jobreader import JobReader

S = 1_000_000_000
LAWS = settings(max_examples=120, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))


@st.composite
def recordings(draw: st.DrawFn) -> Recording:
    """A job of any turns: starts, steps, crashes, restores, elastic waits, events, ends, in any order."""
    job = Recording(step_s=draw(st.sampled_from((0.1, 1, 10))), every=draw(st.sampled_from((2, 5, 1000))))
    number = 0
    job.first = True
    for turn in draw(st.lists(st.sampled_from(("start", "step", "steps", "crash", "restore", "elastic", "custom", "end", "jump", "back", "die")), max_size=14)):
        if turn == "start":
            job.start(draw(st.sampled_from((None, number - 1))))
        elif turn == "die":
            job.start(dies_after=draw(st.sampled_from(("tpu_init", "training_prep"))), dies_s=3)
        elif turn in ("step", "steps"):
            for _ in range(1 if turn == "step" else draw(st.integers(2, 9))):
                job.step(number, recorded=draw(st.integers(0, 5)) > 0, seconds=draw(st.sampled_from((None, None, 0, 500))))
                number += 1
        elif turn == "crash":
            job.crash(number, draw(st.sampled_from((0, 5))), draw(st.integers(0, 100)), says_end=draw(st.booleans()))
        elif turn == "restore":
            job.restore(draw(st.integers(0, 30)))
        elif turn == "elastic":
            job.say("elastic_wait_start_time", elastic_wait_event_type=draw(st.sampled_from(("slice_down", "scale_up"))))
            job.pass_time(7, "scheduling")
            job.say("elastic_wait_end_time", elastic_wait_event_type="slice_down")
        elif turn == "custom":
            job.custom(draw(st.sampled_from(("eval", "a/b", ""))), 4, "eval")
        elif turn == "end":
            job.end()
        else:
            number = max(0, number + (draw(st.integers(1, 5)) if turn == "jump" else -draw(st.integers(1, 9))))
        job.pass_time(draw(st.sampled_from((0, 0, 13))), "scheduling")
    return job


@LAWS
@given(recordings(), st.data())
def test_any_log_is_imported_without_breaking_a_law(job, data):
    if not job.records:
        return
    kept = data.draw(st.lists(st.integers(0, 9), min_size=len(job.records), max_size=len(job.records)))
    job.records = [pair for pair, luck in zip(job.records, kept, strict=True) if luck] or job.records[:1]
    if data.draw(st.integers(0, 4)) == 0:
        job.records = sorted(job.records + job.records[len(job.records) // 2 :], key=lambda pair: pair[0])
    now = data.draw(st.sampled_from((None, job.t / 2, job.t, job.t + 5000)))
    folder = Path(tempfile.mkdtemp())
    try:
        path = job.write(folder)
        made = import_goodput(path, folder / "runs", now_ns=None if now is None else round((ORIGIN_S + now) * S))
        history = JobReader(made.paths).read()
        ledger = account(history).ledger
    finally:
        shutil.rmtree(folder)
    assert history.notes == list(dict.fromkeys(made.notes))
    assert history.torn_lines == 0
    assert 0 <= ledger.effective_ns <= ledger.wall_ns
    assert len(ledger.attempts) == made.attempts
    if now is not None and ledger.status == "running":
        assert ledger.end <= (ORIGIN_S + max(now, 0)) * S + 2000 or ledger.end == max(attempt.end for attempt in ledger.attempts)

"""SIGKILL at any instant: every journal can be read, and the last finished step is known exactly."""

import pytest
from launching import Job

from ettrain.journal import JournalTail


def check(job, results):
    for number, acknowledged in enumerate(results):
        killed = Job(job.cwd / "jobs" / f"{number:03d}")
        journals = list(killed.paths.attempts.glob("*/*.jsonl"))
        if not acknowledged and not (journals and journals[0].stat().st_size):
            continue
        tail = JournalTail(journals[0])
        assert tail.read_new()[0]["k"] == "head"
        assert tail.bad_lines == 0
        beat = killed.beat()
        assert beat.step in (acknowledged, acknowledged + 1), f"kill {number}"
        rank = killed.history().attempts[0].ranks[0]
        assert rank.steps == beat.step
        assert rank.died
        assert not beat.step or rank.last_step_t


def test_300_kills_lose_no_step_and_no_journal(job):
    results = job.program("kills", 300, "fast")
    assert sum(results) > 3000
    check(job, results)


def test_kills_of_a_real_training(job):
    results = job.program("kills", 10, "torch")
    assert sum(results) > 20
    check(job, results)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_2000_kills(job):
    check(job, job.program("kills", 2000, "fast", timeout=1500))

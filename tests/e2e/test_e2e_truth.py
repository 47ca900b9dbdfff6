"""ettrain's figures against the independent truth, for every way in which a job can go wrong."""

from __future__ import annotations

import pytest
from harness import agree


def test_a_clean_run(job):
    done = job.run("--eval-every", "50")
    assert done.code == 0, done.err
    found = agree(job, failures=0)
    assert {leaf.path for leaf in found.ledger.leaves} >= {"idle/steady/evaluation", "idle/steady/checkpoint_blocking", "idle/start/imports"}


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)])
def test_sigkill_of_one_rank_at_a_random_step(job, seed):
    done = job.run(ett=["--restarts", 1], during=lambda job: job.kill_in_step(25, 90, rank=seed % 2, seed=seed))
    assert done.code == 0, done.err
    incident = agree(job, failures=1).ledger.incidents[0]
    assert incident.diagnosis.cls == "killed"
    assert incident.diagnosis.rank == seed % 2


def test_a_crash_during_init(job):
    done = job.run("--fault", "init:raise:1", ett=["--restarts", 1])
    assert done.code == 0, done.err
    incident = agree(job, failures=1).ledger.incidents[0]
    assert (incident.diagnosis.cls, incident.diagnosis.rank) == ("exception", 1)


def test_a_crash_before_the_first_checkpoint(job):
    done = job.run(ett=["--restarts", 1], during=lambda job: job.kill_in_step(5, 18, rank=1, seed=4))
    assert done.code == 0, done.err
    agree(job, failures=1)


def test_two_roll_backs_the_second_deeper(job):
    def twice(job):
        job.kill_in_step(50, 58, rank=0, seed=5)
        job.kill_in_step(70, 78, rank=1, seed=6)
        job.out.joinpath("resume_from").write_text("20")

    done = job.run(ett=["--restarts", 2], during=twice)
    assert done.code == 0, done.err
    agree(job, failures=2)


def test_a_hang_that_is_killed(job):
    def kill_the_hanging(job):
        import time

        entry = job.wait_for("fault", rank=1)
        time.sleep(6)
        job.kill(entry["pid"])

    done = job.run("--fault", "step=45:hang:1", ett=["--restarts", 1], during=kill_the_hanging)
    assert done.code == 0, done.err
    agree(job, failures=1)


def test_a_hang_that_ettrain_ends(job):
    done = job.run("--fault", "step=45:hang:1", ett=["--restarts", 1, "--hang-timeout", 4])
    assert done.code == 0, done.err
    incident = agree(job, failures=1).ledger.incidents[0]
    assert incident.diagnosis.cls == "hang"


def test_a_hang_that_heals(job):
    done = job.run("--fault", "step=45:sleep=5:1")
    assert done.code == 0, done.err
    found = agree(job, failures=0)
    stall = sum(leaf.wall_ns for leaf in found.ledger.leaves if leaf.path == "idle/steady/stall") / 1e9
    assert 4.8 < stall < 5.2


def test_a_preemption_with_a_saved_state(job):
    def preempt(job):
        job.wait_for("step_end", step=33)
        job.stop()

    job.run("--trap-term", during=preempt, ett=["--restarts", 3])
    done = job.run("--trap-term")
    assert done.code == 0, done.err
    agree(job, failures=0, preemptions=1)


def test_a_failed_first_start(job):
    done = job.run("--fault", "start:exit=3:0", ett=["--restarts", 1])
    assert done.code == 0, done.err
    agree(job, failures=1)

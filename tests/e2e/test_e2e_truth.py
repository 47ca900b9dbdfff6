"""ettrain's figures against the independent truth, for every way in which a job can go wrong.

Each story is told by one process (by default) and by two ranks under torchrun (`make e2e`; a few always).
"""

from __future__ import annotations

import time

import pytest
from harness import Job, agree

RANKS = pytest.mark.parametrize("world", [1, pytest.param(2, marks=pytest.mark.slow)])


def leaf_s(account, path):
    return sum(leaf.wall_ns for leaf in account.ledger.leaves if leaf.path == path) / 1e9


def diagnosis(account, index=0):
    found = account.ledger.incidents[index].diagnosis
    return found.cls, found.rank


def test_a_clean_run(tmp_path):
    job = Job(tmp_path / "job")
    done = job.run("--eval-every", "30")
    assert done.code == 0, done.err
    found = agree(job, failures=0)
    assert 0.55 < leaf_s(found, "idle/steady/evaluation") < 1.5
    assert leaf_s(found, "idle/steady/checkpoint_blocking") > 0


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3, 4))])
def test_sigkill_of_one_rank_at_a_random_step(tmp_path, seed):
    job = Job(tmp_path / "job")
    done = job.run(ett=["--restarts", 1], during=lambda job: job.kill_in_step(14, 55, rank=seed % 2, seed=seed))
    assert done.code == 0, done.err
    assert diagnosis(agree(job, failures=1)) == ("killed", seed % 2)


@RANKS
def test_a_crash_during_init(tmp_path, world):
    job = Job(tmp_path / "job", world=world)
    done = job.run("--fault", f"init:raise:{world - 1}", ett=["--restarts", 1])
    assert done.code == 0, done.err
    assert diagnosis(agree(job, failures=1)) == ("exception", world - 1)


@RANKS
def test_a_crash_before_the_first_checkpoint(tmp_path, world):
    job = Job(tmp_path / "job", world=world)
    done = job.run(ett=["--restarts", 1], during=lambda job: job.kill_in_step(4, 10, rank=world - 1, seed=5))
    assert done.code == 0, done.err
    assert diagnosis(agree(job, failures=1)) == ("killed", world - 1)


@RANKS
def test_two_roll_backs_the_second_deeper(tmp_path, world):
    def twice(job):
        job.kill_in_step(30, 34, rank=0, seed=6)
        job.wait_for("load_end", step=24)
        job.kill_in_step(50, 54, rank=world - 1, seed=7)
        job.out.joinpath("resume_from").write_text("12")

    job = Job(tmp_path / "job", world=world)
    done = job.run(ett=["--restarts", 2], during=twice)
    assert done.code == 0, done.err
    agree(job, failures=2)


@RANKS
def test_a_hang_that_is_killed(tmp_path, world):
    def kill_it(job):
        entry = job.wait_for("fault", rank=world - 1)
        time.sleep(6)
        job.kill(entry["pid"])

    job = Job(tmp_path / "job", world=world)
    done = job.run("--fault", f"step=29:hang:{world - 1}", ett=["--restarts", 1], during=kill_it)
    assert done.code == 0, done.err
    agree(job, failures=1)


@pytest.mark.parametrize("world", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_hang_that_ettrain_ends(tmp_path, world):
    job = Job(tmp_path / "job", world=world)
    done = job.run("--fault", f"step=29:hang:{world - 1}", ett=["--restarts", 1, "--hang-timeout", 4])
    assert done.code == 0, done.err
    assert diagnosis(agree(job, failures=1))[0] == "hang"


@RANKS
def test_a_hang_that_heals(tmp_path, world):
    job = Job(tmp_path / "job", world=world)
    done = job.run("--fault", f"step=29:sleep=5:{world - 1}")
    assert done.code == 0, done.err
    assert 4.8 < leaf_s(agree(job, failures=0), "idle/steady/stall") < 5.2


@RANKS
def test_a_preemption_with_a_saved_state(tmp_path, world):
    def preempt(job):
        job.wait_for("step_end", step=20)
        job.stop()

    job = Job(tmp_path / "job", world=world)
    job.run("--trap-term", during=preempt, ett=["--restarts", 3])
    done = job.run("--trap-term")
    assert done.code == 0, done.err
    found = agree(job, failures=0, preemptions=1)
    assert found.ledger.unsaved_ns < 0.1e9


@RANKS
def test_a_failed_first_start(tmp_path, world):
    job = Job(tmp_path / "job", world=world)
    done = job.run("--fault", "imported:exit=3:0", ett=["--restarts", 1])
    assert done.code == 0, done.err
    agree(job, failures=1)


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2])
def test_a_first_start_that_fails_before_torch_is_imported(tmp_path, world):
    job = Job(tmp_path / "job", world=world)
    done = job.run("--fault", "start:exit=3:0", ett=["--restarts", 1])
    assert done.code == 0, done.err
    agree(job, failures=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "world", [1, pytest.param(2, marks=pytest.mark.xfail(reason="short waits of ranks that wait by turns are not added up"))]
)
def test_waiting_for_data_by_turns(tmp_path, world):
    job = Job(tmp_path / "job", world=world)
    done = job.run("--workers", "0", "--stagger-s", "0.06")
    assert done.code == 0, done.err
    found = agree(job, failures=0)
    assert leaf_s(found, "idle/steady/data_wait") > 0.9 * 0.06 * job.steps / (3 - world)

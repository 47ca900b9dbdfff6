"""Every way of starting a job is recorded alike."""

from __future__ import annotations

import os

import pytest
from harness import HERE, PYTHON, TORCHRUN, Job, agree


@pytest.fixture
def job(tmp_path):
    """Two ranks under torchrun."""
    return Job(tmp_path / "job")


@pytest.fixture
def solo(tmp_path):
    """One process."""
    return Job(tmp_path / "job", world=1)


def test_restarts_by_torchrun_itself_are_attempts(job):
    command = [TORCHRUN, "--standalone", "--nproc-per-node", "2", "--max-restarts", "1", *job.program()]
    env = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    done = job.run(command=command, env=env, during=lambda job: job.kill_in_step(28, 34, rank=1, seed=8))
    assert done.code == 0, done.err
    found = agree(job, failures=1)
    assert [row.name for row in found.ledger.attempts] == ["000", "000-r1"]


def test_a_job_resumed_by_hand(solo):
    first = solo.run("--fault", "step=29:exit=3")
    assert first.code == 3
    second = solo.run()
    assert second.code == 0, second.err
    agree(solo, failures=1)


def test_a_script_that_calls_python(solo):
    script = solo.folder / "start.sh"
    solo.folder.mkdir()
    script.write_text("echo begin\n" + " ".join(solo.command()) + '\ncode=$?\necho "end $code"\nexit $code\n')
    done = solo.run(command=["bash", str(script)])
    assert (done.code, done.out) == (0, "begin\nend 0\n"), done.err
    agree(solo, failures=0)


def test_a_module(solo):
    package = solo.folder / "pkg"
    package.mkdir(parents=True)
    package.joinpath("__main__.py").write_text((HERE / "programs" / "train.py").read_text())
    done = solo.run(command=[PYTHON, "-m", "pkg", *solo.program()[1:]], env={"PYTHONPATH": os.fspath(solo.folder)})
    assert done.code == 0, done.err
    agree(solo, failures=0)

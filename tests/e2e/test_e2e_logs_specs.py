"""`torchrun --logs-specs ettrain`: the same figures without `ett run`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time

import pytest
from harness import TORCHRUN, Job, agree

TEARDOWN_S = 3.0
"""torchrun's interpreter takes a second or two to end after the last instant at which the plug-in can look."""


@pytest.fixture
def job(tmp_path):
    """Two ranks, recorded by the plug-in alone."""
    return Job(tmp_path / "job")


def plugged(job, *arguments, options=(), **more):
    command = [TORCHRUN, "--standalone", "--logs-specs", "ettrain", "--nproc-per-node", "2", *options, *job.program(*arguments)]
    env = {"ETT_RUNS": os.fspath(job.runs), "ETT_JOB": "job", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return job.run(command=command, env=env, under_ett=False, **more)


def test_restarts_of_a_plain_torchrun_are_recorded(job):
    done = plugged(job, options=["--max-restarts", "1"], during=lambda job: job.kill_in_step(28, 34, rank=1, seed=9))
    assert done.code == 0, done.err
    found = agree(job, failures=1, blind_s=TEARDOWN_S).ledger
    assert [row.name for row in found.attempts] == ["000", "000-r1"]
    assert (found.incidents[0].diagnosis.cls, found.incidents[0].diagnosis.rank) == ("killed", 1)
    assert found.status == "finished"


@pytest.mark.slow
def test_a_failed_torchrun_and_the_next_one_are_attempts_of_one_job(job):
    first = plugged(job, "--fault", "step=29:raise:1")
    assert first.code == 1
    assert job.account().ledger.status == "failed"
    second = plugged(job)
    assert second.code == 0, second.err
    found = agree(job, failures=1, blind_s=TEARDOWN_S).ledger
    assert found.incidents[0].diagnosis.cls == "exception"


@pytest.mark.slow
def test_a_torchrun_told_to_stop_is_a_preemption(job):
    def stop(job):
        job.wait_for("step_end", step=20)
        job.stop(signal.SIGTERM)

    plugged(job, "--trap-term", during=stop)
    second = plugged(job, "--trap-term")
    assert second.code == 0, second.err
    agree(job, failures=0, preemptions=1, blind_s=TEARDOWN_S)


@pytest.mark.slow
def test_a_torchrun_killed_with_sigkill_leaves_a_lost_attempt(job):
    def kill(job):
        job.wait_for("step_end", step=20)
        job.kill(job.process.pid)
        time.sleep(0.3)
        for pid in {entry["pid"] for entry in job.entries()}:
            job.kill(pid)

    first = plugged(job, during=kill)
    assert first.code == -signal.SIGKILL
    found = job.account().ledger
    assert (found.status, found.incidents[0].diagnosis.cls) == ("failed", "supervisor_lost")


@pytest.mark.slow
def test_two_nodes_are_attempts_of_one_job(job):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [TORCHRUN, "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}"]
    command += ["--rdzv-id", "job", "--logs-specs", "ettrain", *job.program()]
    env = {"ETT_RUNS": os.fspath(job.runs)}
    other = []

    def second_node(job):
        with job.folder.joinpath("stderr-1").open("wb") as err:
            other.append(subprocess.Popen(command, env=os.environ | env | {"OMP_NUM_THREADS": "1"}, stderr=err, cwd=job.folder))

    done = job.run(command=command, env=env, under_ett=False, during=second_node)
    assert (done.code, other[0].wait(30)) == (0, 0), done.err + job.folder.joinpath("stderr-1").read_text()
    found = agree(job, failures=0, blind_s=TEARDOWN_S)
    assert [(row.name, row.ranks) for row in found.ledger.attempts] == [("000", 2)]


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_costs_nothing_but_the_recording(job):
    command = [TORCHRUN, "--standalone", "--logs-specs", "ettrain", "--nproc-per-node", "2", *job.program()]
    done = job.run(command=command, env={"ETT_RUNS": "/proc/nowhere", "ETT_JOB": "job"}, under_ett=False)
    assert done.code == 0, done.err
    assert done.err.count("ettrain: ") == 1
    assert job.truth().steps == job.steps


@pytest.mark.slow
def test_under_ett_run_the_plug_in_puts_back_what_a_script_took_away(job):
    job.folder.mkdir()
    script = job.folder / "start.sh"
    words = " ".join(["exec", TORCHRUN, "--standalone", "--logs-specs", "ettrain", "--nproc-per-node", "2", *job.program()])
    script.write_text(f"export PYTHONPATH={os.environ.get('PYTHONPATH', '')}\n{words}\n")
    done = job.run(command=["bash", os.fspath(script)])
    assert done.code == 0, done.err
    agree(job, failures=0)

"""Attempts: restarts, what is left behind, hangs, and who may run a job."""

from __future__ import annotations

import os
import signal
import statistics
import sys
import time
from pathlib import Path

TORCHRUN = str(Path(sys.executable).parent / "torchrun")


def test_restarts_are_used_up(ett):
    done = ett.run("sh", "-c", "echo x; exit 5", ett=["--restarts", 2])
    assert (done.returncode, done.stdout) == (5, "x\n" * 3)
    assert [record["attempt"] for record in ett.records("begin")] == ["000", "001", "002"]
    assert "restart 2 of 2" in done.stderr
    assert len(ett.ledger().incidents) == 3


def test_restarts_end_with_the_first_success(ett, rank):
    done = ett.run("sh", "-c", f"test -e there && exec {' '.join(rank)} 3; touch there; exit 1", ett=["--restarts", 5])
    assert done.returncode == 0
    assert len(ett.records("begin")) == 2
    assert ett.ledger().status == "finished"


def test_the_pause_before_a_restart(ett):
    ett.run("sh", "-c", "exit 1", ett=["--restarts", 1, "--restart-delay", 1.5])
    end, begin = ett.records("end")[0]["t"], ett.records("begin")[1]["t"]
    assert 1.5e9 <= begin - end < 2.5e9


def test_the_second_run_of_a_name_goes_on_with_the_numbers(ett, rank):
    ett.run(*rank, 5, "exit=1")
    ett.run(*rank, 5)
    ledger = ett.ledger()
    assert [row.name for row in ledger.attempts] == ["000", "001"]
    assert ledger.status == "finished"


def test_nothing_of_an_attempt_outlives_it(ett, is_alive):
    """Not even what left the session, was orphaned, and does not hear SIGTERM."""
    deaf = (
        "import os,signal,time; os.setsid(); signal.signal(signal.SIGTERM, signal.SIG_IGN); print(os.getpid(), flush=True); time.sleep(600)"
    )
    script = f"{sys.executable} -c '{deaf}' & sleep 600 & echo $!; sleep 0.6; exit 3"
    begin = time.monotonic()
    done = ett.run("sh", "-c", script)
    pids = [int(word) for word in done.stdout.split()]
    assert done.returncode == 3
    assert len(pids) == 2
    assert not any(map(is_alive, pids))
    assert 4 < time.monotonic() - begin < 10


def test_a_torchrun_killed_with_sigkill_leaves_no_worker(ett, rank, is_alive):
    process = ett.start(TORCHRUN, "--standalone", "--nproc-per-node", 2, *rank[1:], 3, "sleep=600")
    pids = ett.rank_pids(2)
    agent = int(Path(f"/proc/{pids[0]}/stat").read_bytes().rsplit(b")", 1)[1].split()[1])
    assert {os.getsid(pid) for pid in pids} == set(pids)
    os.kill(agent, signal.SIGKILL)
    process.communicate(timeout=30)
    assert process.returncode == 137
    assert not any(map(is_alive, pids))
    gone = {record["pid"]: record.get("code") for record in ett.records("gone")}
    assert gone == dict.fromkeys(pids, -15)


# ---- hangs


def test_a_hang_is_ended_and_restarted(ett, rank):
    done = ett.run(*rank, 30, "once=there", ett=["--restarts", 1, "--hang-timeout", 1])
    assert done.returncode == 0, done.stderr
    assert "no rank made progress for 1 s" in done.stderr
    assert [record.get("reason") for record in ett.records("end")] == ["hang", None]
    incident = ett.ledger().incidents[0]
    assert incident.diagnosis.cls == "hang"
    assert 0.9 < incident.detect_ns / 1e9 < 2.5


def test_a_hang_that_is_deaf_to_sigterm_is_killed_after_the_grace(ett, rank):
    begin = time.monotonic()
    done = ett.run(*rank, 30, "hang-deaf", ett=["--hang-timeout", 1], env=ett.env | {"ETT_GRACE": "0.7"})
    assert done.returncode == 137
    assert time.monotonic() - begin < 10


def test_nothing_is_a_hang_before_the_first_step_or_while_steps_go_on(ett, rank):
    done = ett.run("sh", "-c", f"sleep 1.5; {' '.join(rank)} 75", ett=["--hang-timeout", 1])
    assert done.returncode == 0, done.stderr


def test_a_slow_end_of_the_interpreter_is_no_hang(ett, rank):
    done = ett.run(*rank, 30, "slow-end=2", ett=["--hang-timeout", 1])
    assert done.returncode == 0, done.stderr


# ---- one supervisor per job


def test_a_second_supervisor_is_refused_while_the_first_lives(ett):
    first = ett.start("sh", "-c", "echo ready; sleep 3")
    assert first.stdout.readline() == "ready\n"
    second = ett.run("sh", "-c", "echo ran")
    assert (second.returncode, second.stdout) == (2, "")
    assert f"job 'job' is being run by process {first.pid} on {os.uname().nodename}" in second.stderr
    first.communicate(timeout=20)
    assert first.returncode == 0
    assert ett.run("true").returncode == 0
    assert [record["attempt"] for record in ett.records("begin")] == ["000", "001"]


def test_of_many_started_at_once_one_runs(ett):
    many = [ett.start("sh", "-c", "echo ran; sleep 2") for _ in range(4)]
    outs = [process.communicate(timeout=30)[0] for process in many]
    assert sorted(outs) == ["", "", "", "ran\n"]
    assert sorted(process.returncode for process in many) == [0, 2, 2, 2]
    assert len(ett.records("begin")) == 1


def test_a_lost_supervisor(ett, rank, is_alive):
    process = ett.start(*rank, 30, "sleep=600", ett=["--restarts", 3])
    (pid,) = ett.rank_pids()
    ett.wait(lambda: ett.ledger().steps >= 10)
    assert ett.ledger().status == "running"
    process.kill()
    process.wait()
    ett.wait(lambda: ett.ledger().steps >= 30 or not is_alive(pid))
    assert is_alive(pid)
    refused = ett.run(*rank, 3)
    assert refused.returncode == 2
    assert f"is still training: process(es) {pid} of its last attempt live" in refused.stderr
    os.kill(pid, signal.SIGKILL)
    ett.wait(lambda: not is_alive(pid))
    ledger = ett.ledger()
    assert (ledger.status, ledger.incidents[0].diagnosis.cls) == ("failed", "supervisor_lost")
    again = ett.run(*rank, 40)
    assert again.returncode == 0, again.stderr
    ledger = ett.ledger()
    assert (ledger.status, [row.name for row in ledger.attempts]) == ("finished", ["000", "001"])


# ---- what it costs


def test_the_death_of_a_rank_is_stamped_at_once(ett, rank):
    runs = "; ".join(f"{' '.join(rank)} 12 stamp-and-die=died-{number}" for number in range(7))
    ett.run("sh", "-c", runs, ett=["--quiet"])
    gone = [record["t"] for record in ett.records("gone")]
    died = [int((ett.folder / f"died-{number}").read_text()) for number in range(7)]
    late_ms = [(t - d) / 1e6 for t, d in zip(gone, died, strict=True)]
    print(late_ms)
    assert min(late_ms) >= 0
    assert statistics.median(late_ms) < 30, late_ms


def test_the_supervisor_takes_next_to_no_cpu(ett, rank):
    process = ett.start(*rank, 3, "sleep=600", ett=["--hang-timeout", 500])
    (pid,) = ett.rank_pids()

    def ticks():
        fields = Path(f"/proc/{process.pid}/stat").read_bytes().rsplit(b")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    before = ticks()
    time.sleep(4)
    busy = (ticks() - before) / os.sysconf("SC_CLK_TCK") / 4
    process.terminate()
    print(f"{busy:.3%}")
    assert busy < 0.03
    assert pid

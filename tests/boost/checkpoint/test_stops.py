"""Planned stops, with real signals: the save comes first, then the process ends as it would have ended."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ettrain.boost.checkpoint.stops import Stops
from ettrain.errors import UsageError

PROGRAM = Path(__file__).parent / "programs/stopping.py"
CLI = [sys.executable, "-c", "import sys; from ettrain.cli import main; sys.exit(main())"]


def ended(folder, what="", *, send=(signal.SIGTERM,), env=None, command=None, ranks=1):
    """(exit code, what it noted down) of the program that got these signals once it was ready."""
    words = command or [sys.executable, PROGRAM]
    process = subprocess.Popen(
        [*map(str, words), str(folder), what], env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}, stderr=subprocess.PIPE, text=True
    )
    try:
        ready = [folder / f"ready-{rank}" for rank in range(ranks)]
        while not all(path.exists() and path.read_text().endswith("\n") for path in ready):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.02)
        for number in send:
            process.send_signal(number)
            time.sleep(0.1)
        errors = process.communicate(timeout=120)[1]
    finally:
        process.kill()
        process.communicate()
    return process.returncode, {path.name: path.read_text().strip() for path in folder.iterdir() if path.is_file()} | {"errors": errors}


def test_sigterm_saves_first_and_then_ends_the_process_as_ever(tmp_path):
    code, noted = ended(tmp_path)
    assert code == -signal.SIGTERM
    assert noted["why-0"] == "told to stop by SIGTERM"
    assert int(noted["saved-0"]) < 59
    assert "went on-0" not in noted


def test_a_second_signal_does_not_interrupt_the_save(tmp_path):
    code, noted = ended(tmp_path, "slow", send=(signal.SIGTERM,) * 3)
    assert code == -signal.SIGTERM
    assert "saved-0" in noted


def test_a_handler_that_was_there_is_called_after_the_save_and_decides(tmp_path):
    code, noted = ended(tmp_path, "handler")
    assert code == 0
    assert noted["earlier-0"] == "after the save"
    assert "went on-0" in noted
    assert "finished-0" in noted


def test_a_signal_that_was_ignored_saves_and_ends_nothing(tmp_path):
    code, noted = ended(tmp_path, "ignored")
    assert code == 0
    assert "saved-0" in noted
    assert "finished-0" in noted


@pytest.mark.parametrize("what", ["early", "early handler"])
def test_before_the_loop_asks_there_is_nothing_to_save_and_signals_act_as_ever(tmp_path, what):
    code, noted = ended(tmp_path, what)
    assert "saved-0" not in noted
    assert code == (-signal.SIGTERM if what == "early" else 0)
    assert noted.get("earlier-0") == (None if what == "early" else "before")


def test_a_signal_that_nobody_took_is_not_swallowed(tmp_path):
    code, noted = ended(tmp_path, "nobody")
    assert code == -signal.SIGTERM
    assert "finished-0" not in noted
    assert "saved-0" not in noted


def test_a_forked_child_dies_of_the_signal_as_ever(tmp_path):
    code, noted = ended(tmp_path, "child", send=())
    assert code == 0
    assert noted["child-0"] == str(-signal.SIGTERM)
    assert "saved-0" not in noted


@pytest.mark.parametrize("what", ["stuck", "long", "alone"])
def test_a_loop_that_does_not_ask_or_does_not_agree_ends_soon_as_ever(tmp_path, what):
    """torchrun sends SIGTERM to the other ranks when one has died: they must not wait there for SIGKILL, half a minute later."""
    began = time.monotonic()
    code, noted = ended(tmp_path, what)
    assert code == -signal.SIGTERM
    assert "saved-0" not in noted
    assert time.monotonic() - began < 25  # not the 60 s that it would sleep, nor torchrun's 30 s


def test_under_ett_run_a_planned_stop_waits_for_what_the_loop_does(tmp_path):
    run = [*CLI, "run", "--quiet", "--job", "j", "--runs", tmp_path / "runs", "--", sys.executable, PROGRAM]
    code, noted = ended(tmp_path, "long", command=run)
    assert code == 128 + signal.SIGTERM
    assert "saved-0" in noted


def test_a_time_limit_leaves_room_for_the_save(tmp_path):
    code, noted = ended(tmp_path, "limit", send=())
    assert code == -signal.SIGTERM
    assert noted["why-0"] in ("the time limit is near, 30 s are left", "the time limit is near, 29 s are left")
    assert "saved-0" in noted


@pytest.mark.parametrize("name", ["ETT_END_TIME", "SLURM_JOB_END_TIME"])
def test_the_scheduler_says_when_the_time_is_over(monkeypatch, name):
    monkeypatch.setenv(name, str(int(time.time()) + 100))
    stops = Stops(signals=())
    assert not stops.asked()
    assert 90 < stops.left_s() < 101
    stops.takes_s = 60.0
    assert stops.asked()
    monkeypatch.setenv(name, str(int(time.time()) - 100))
    over = Stops(signals=())
    assert over.left_s() is None
    assert not over.asked()


def test_slurms_signal_is_one_where_it_was_named(tmp_path):
    code, noted = ended(tmp_path, send=(signal.SIGUSR1,), env={"ETT_STOP_SIGNALS": "SIGTERM,USR1"})
    assert code == -signal.SIGUSR1
    assert noted["why-0"] == "told to stop by SIGUSR1"
    assert "saved-0" in noted


@pytest.mark.parametrize("names", [("SIGKILL",), ("SIGNONSENSE",), ("15",)])
def test_what_cannot_be_caught_is_refused(names):
    with pytest.raises(UsageError, match="no signal that can be caught"):
        Stops(signals=names)


def test_nonsense_for_a_time_limit_is_refused():
    for wrong in (0, -1, float("nan"), 1e12):
        with pytest.raises(UsageError, match="time_limit"):
            Stops(signals=(), time_limit=wrong)


def test_on_another_thread_the_signal_acts_as_ever_and_that_is_said(tmp_path):
    code, noted = ended(tmp_path, "thread")
    assert code == -signal.SIGTERM
    assert "saved-0" not in noted
    assert "another thread" in noted["errors"]


def test_whoever_takes_the_signal_later_keeps_it():
    before = signal.getsignal(signal.SIGTERM)
    stops = Stops()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    stops.forget()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    signal.signal(signal.SIGTERM, before)


def test_letting_go_puts_the_handler_back():
    before = signal.getsignal(signal.SIGTERM)
    stops = Stops()
    assert signal.getsignal(signal.SIGTERM) != before
    stops.forget()
    stops.forget()
    assert signal.getsignal(signal.SIGTERM) == before


def reported(folder, job):
    output = subprocess.run([*CLI, "report", job, "--runs", folder / "runs", "--json"], capture_output=True, text=True, check=True)
    return json.loads(output.stdout)


def test_under_ett_run_the_grace_is_known_and_the_stop_stays_a_planned_one(tmp_path):
    run = [*CLI, "run", "--quiet", "--restarts", "3", "--job", "planned", "--runs", tmp_path / "runs", "--", sys.executable, PROGRAM]
    code, noted = ended(tmp_path, command=run, env={"ETT_GRACE": "20"})
    assert code == 128 + signal.SIGTERM
    assert noted["why-0"] in ("told to stop by SIGTERM, 20 s are left", "told to stop by SIGTERM, 19 s are left")
    assert "saved-0" in noted
    told = reported(tmp_path, "planned")
    assert [(one["kind"], one["class"]) for one in told["incidents"]] == [("preemption", "preemption")]
    assert told["number_of_failures"] == 0
    assert len(told["attempts"]) == 1


def test_a_signal_of_slurms_and_a_time_limit_are_no_failures_either(tmp_path):
    for job, what, send in (("usr1", "", (signal.SIGUSR1,)), ("limit", "limit", ())):
        (tmp_path / job).mkdir()
        run = [*CLI, "run", "--quiet", "--job", job, "--runs", tmp_path / "runs", "--", sys.executable, PROGRAM]
        ended(tmp_path / job, what, command=run, send=send, env={"ETT_STOP_SIGNALS": "SIGTERM,SIGUSR1"})
        told = reported(tmp_path, job)
        assert [one["kind"] for one in told["incidents"]] == ["preemption"], job
        assert told["number_of_failures"] == 0


def test_nothing_is_started_again_right_before_the_time_limit(tmp_path):
    def attempts(job, end):
        run = [
            *CLI,
            "run",
            "--quiet",
            "--restarts",
            "2",
            "--job",
            job,
            "--runs",
            tmp_path / "runs",
            "--",
            sys.executable,
            "-c",
            "import ettrain as ett; ett.step(0); raise SystemExit(1)",
        ]
        output = subprocess.run(
            list(map(str, run)), env={**os.environ, "ETT_END_TIME": str(end)}, capture_output=True, text=True, check=False
        )
        return len(os.listdir(tmp_path / "runs" / job / "attempts")), "not started again" in output.stderr

    now = time.time()
    assert attempts("near", now + 29) == (1, True)
    assert attempts("far", now + 3000) == (3, False)
    assert attempts("passed", now - 3000) == (3, False)


def test_torchrun_passes_it_on_and_every_rank_saves(tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", PROGRAM]
    code, noted = ended(tmp_path, command=torchrun, ranks=2)
    assert code != 0
    for rank in (0, 1):
        assert noted[f"why-{rank}"] in ("told to stop by SIGTERM, 30 s are left", "told to stop by SIGTERM, 29 s are left")
        assert f"saved-{rank}" in noted
        assert f"finished-{rank}" not in noted


LOADING = """
import os, signal, sys, time
import torch
from torch.utils.data import DataLoader
from ettrain.boost.checkpoint.stops import Stops
stops = Stops()
stops.asked()
loader = DataLoader(list(range(64)), batch_size=4, num_workers=2)
batches = iter(loader)
next(batches)
began = time.monotonic()
for worker in batches._workers:
    worker.terminate()
for worker in batches._workers:
    worker.join(20)
print([worker.exitcode for worker in batches._workers], stops.asked())
"""


def test_workers_of_a_loader_end_when_they_are_told_to():
    output = subprocess.run(
        [sys.executable, "-c", LOADING], capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert output.stdout.strip().endswith("False"), output.stderr
    assert "None" not in output.stdout

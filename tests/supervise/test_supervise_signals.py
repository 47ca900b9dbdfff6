"""Signals: passed on once, to whom they would have gone without us, and never followed by a restart."""

from __future__ import annotations

import signal
import subprocess
import time

import pytest

TRAP = 'trap "echo got; exit 7" {0}; echo ready; while :; do sleep 0.05; done'


def begun(process):
    assert process.stdout.readline() == "ready\n"


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP"])
def test_a_signal_to_stop_is_passed_on_and_nothing_restarts(ett, name):
    process = ett.start("sh", "-c", TRAP.format(name), ett=["--restarts", 3])
    begun(process)
    process.send_signal(signal.Signals[f"SIG{name}"])
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (7, "got\n"), err
    assert len(ett.records("begin")) == 1
    assert ett.records("end")[0]["sent"] == [f"SIG{name}"]
    assert ett.ledger().incidents[0].diagnosis.kind == ("stop" if name == "INT" else "preemption")


@pytest.mark.parametrize("name", ["USR1", "USR2"])
def test_other_signals_are_passed_on_and_stop_nothing(ett, name):
    process = ett.start("sh", "-c", TRAP.format(name), ett=["--restarts", 1])
    begun(process)
    process.send_signal(signal.Signals[f"SIG{name}"])
    begun(process) if process.stdout.readline() == "got\n" else pytest.fail("not passed on")
    process.send_signal(signal.Signals[f"SIG{name}"])
    process.communicate(timeout=20)
    assert process.returncode == 7
    assert len(ett.records("begin")) == 2


def test_sigterm_reaches_the_command_but_not_what_it_started(ett):
    """As with a bare command: a trainer loses the state it wants to save when its data workers get the signal as well."""
    script = "sh -c 'trap \"echo child got it\" TERM; while :; do sleep 0.05; done' & child=$!; " + TRAP.format("TERM").replace(
        "exit 7", "sleep 0.5; kill -9 $child; exit 7"
    )
    process = ett.start("sh", "-c", script)
    begun(process)
    process.terminate()
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (7, "got\n")


def test_a_wrapper_that_dies_of_sigterm_leaves_its_program_time_to_save(ett):
    program = 'trap "sleep 1; echo saved; exit 0" TERM; echo ready; while :; do sleep 0.05; done'
    process = ett.start("sh", "-c", f"sh -c '{program}'; echo never")
    begun(process)
    process.terminate()
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (143, "saved\n")


def test_a_second_ctrl_c_kills(ett, is_alive):
    process = ett.start("sh", "-c", 'trap "" INT TERM; sleep 1000 & echo ready; while :; do sleep 0.05; done')
    begun(process)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    begin = time.monotonic()
    process.communicate(timeout=20)
    assert process.returncode == 137
    assert time.monotonic() - begin < 3


def test_a_signal_during_the_pause_before_a_restart_cancels_it(ett):
    process = ett.start("sh", "-c", "exit 5", ett=["--restarts", 3, "--restart-delay", 30])
    ett.wait(lambda: ett.records("end"))
    time.sleep(0.2)
    begin = time.monotonic()
    process.terminate()
    process.communicate(timeout=20)
    assert process.returncode == 5
    assert time.monotonic() - begin < 3
    assert len(ett.records("begin")) == 1


def test_nohup_is_respected(ett):
    words = ["nohup", *ett.words("sh", "-c", "echo ready; sleep 1; echo done")]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=ett.env)
    ett.started.append(process)
    begun(process)
    process.send_signal(signal.SIGHUP)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, "done\n")

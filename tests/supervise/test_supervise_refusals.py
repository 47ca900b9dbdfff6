"""What `ett run` refuses, and what it puts up with."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--restarts", "many"], "restarts must be a number"),
        (["--restarts", "-1"], "must not be negative"),
        (["--restart-delay", "soon"], "must be a number"),
        (["--hang-timeout", "-3"], "must not be negative"),
        (["--label", "team"], "write KEY=VALUE"),
        (["--nonsense"], "unrecognized"),
        (["--runs", "/etc/hostname"], "is not a folder"),
    ],
)
def test_bad_arguments_end_with_2_and_run_nothing(ett, options, says):
    done = ett.run("sh", "-c", "echo ran", ett=options)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["", "-x", "a/b", "../up", "a b", "x" * 101, "ä", ".hidden"])
def test_bad_job_names_are_refused(ett, name):
    done = subprocess.run(
        [*ett.words("true")[:2], "--runs", str(ett.runs), f"--job={name}", "--", "true"], env=ett.env, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "use letters, digits" in done.stderr
    assert not ett.runs.exists()


@pytest.mark.parametrize("name", ["a", "Train_7.final-2", "x" * 100])
def test_good_job_names_are_taken(ett, name):
    assert ett.run("true", job=name).returncode == 0
    assert (ett.runs / name / "supervisor.jsonl").exists()


def test_nothing_to_run(ett):
    done = ett.run()
    assert done.returncode == 2
    assert "nothing to run" in done.stderr


def test_a_command_that_is_not_there(ett):
    done = ett.run("no-such-program", ett=["--restarts", 3])
    assert done.returncode == 127
    assert done.stderr.count("cannot start 'no-such-program': No such file or directory") == 1
    assert len(ett.records("begin")) == 1
    assert ett.ledger().incidents[0].diagnosis.cls == "command_not_found"


def test_a_command_that_is_no_program(ett):
    file = ett.folder / "data.txt"
    file.write_text("text\n")
    done = ett.run(file, ett=["--restarts", 3])
    assert done.returncode == 126
    assert "cannot start" in done.stderr
    assert len(ett.records("begin")) == 1


def test_a_runs_folder_that_cannot_be_written(ett, rank):
    done = ett.run(*rank, 3, "exit=3", ett=["--runs", "/proc/nowhere", "--restarts", 1])
    assert done.returncode == 3
    assert done.stderr.count("cannot record") == 1
    assert "recording job" not in done.stderr


def test_a_pythonpath_that_the_command_overwrote(ett):
    script = "import torch; x = torch.ones(1, requires_grad=True); x.backward()"
    done = ett.run("env", "PYTHONPATH=/elsewhere", sys.executable, "-c", script)
    assert done.returncode == 0
    assert "no training process was seen. Did the command overwrite PYTHONPATH" in done.stderr


def test_strange_folders_among_the_attempts_do_not_disturb_the_numbering(ett):
    ett.paths.attempts.mkdir(parents=True)
    for name in ("000", "003-r2", "notes", ".nfs0001"):
        (ett.paths.attempts / name).mkdir()
    assert ett.run("true").returncode == 0
    assert [record["attempt"] for record in ett.records("begin")] == ["004"]

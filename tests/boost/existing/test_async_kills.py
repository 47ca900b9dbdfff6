"""Killed by SIGKILL at random instants, again and again: what `latest` names is there and whole, and never older than what it named before."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

PROGRAM = Path(__file__).parent / "programs" / "rotating.py"
ETT = Path(sys.executable).parent / "ett"


@pytest.mark.slow
def test_a_process_killed_at_any_instant_leaves_whole_checkpoints_and_a_true_pointer(tmp_path):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ETT_")} | {"OMP_NUM_THREADS": "1"}
    chance, before = random.Random(11), 0
    for number in range(10):
        command = [ETT, "run", "--quiet", "--runs", "runs", "--job", f"k{number}", "--async-checkpoint", "--", sys.executable, "-u", PROGRAM, "out"]
        with subprocess.Popen([*map(str, command)], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
            lines = [process.stdout.readline() for _ in range(3 if number == 0 else chance.randint(1, 12))]
            kill_child(process.pid, after_s=chance.uniform(0, 0.05))
            assert all(lines), "it ended by itself"
            process.stdout.read()
        step = torch.load(tmp_path / "out" / (tmp_path / "out/latest").read_text())["step"]
        assert step >= before
        before = step
        for path in (tmp_path / "out").glob("step-*.pt"):
            found = torch.load(path)
            assert path.name == f"step-{found['step']}.pt"
            assert (found["ballast"] == found["step"]).all()
    assert before > 30


def kill_child(pid, after_s):
    """The one below `ett run`."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    time.sleep(after_s)
    os.kill(int(children[0]), signal.SIGKILL)

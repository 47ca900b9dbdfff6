"""Checkpoints inside transformers' Trainer and Lightning: killed, each goes on to the very weights of the run that was never killed."""

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

PROGRAMS = Path(__file__).parent / "programs"
SOURCE = Path(__file__).resolve().parents[3] / "src"

pytestmark = pytest.mark.slow


def run(folder, program, name, *words, code=0):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, str(PROGRAMS / program), name, f"{name}.log", *map(str, words)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == code, f"{done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
    return done.stderr


def killed_twice(folder, program):
    """(uninterrupted, killed): the final states, and for each step what was trained in it, as often as it was."""
    run(folder, program, "whole")
    run(folder, program, "cut", 14, code=-signal.SIGKILL)
    said = run(folder, program, "cut", 24, code=-signal.SIGKILL)
    said += run(folder, program, "cut")
    assert said.count("goes on at step") == 2, said
    return [torch.load(folder / f"{name}.end")["model"] for name in ("whole", "cut")], [(folder / f"{name}.log").read_text() for name in ("whole", "cut")]


def check(folder, program):
    (whole, cut), (diary, diaries) = killed_twice(folder, program)
    assert all(torch.equal(whole[name], cut[name]) for name in whole)
    assert set(diary.splitlines()) == set(diaries.splitlines())  # a step that was done again was the same samples again
    assert len(diary.splitlines()) == 30


@pytest.mark.skipif(find_spec("transformers") is None or find_spec("accelerate") is None, reason="transformers and accelerate are not installed")
def test_a_trainer_of_transformers_that_was_killed_ends_with_the_same_weights(tmp_path):
    check(tmp_path, "hftrain.py")


@pytest.mark.skipif(find_spec("lightning") is None, reason="lightning is not installed")
def test_a_trainer_of_lightning_that_was_killed_ends_with_the_same_weights(tmp_path):
    check(tmp_path, "pltrain.py")

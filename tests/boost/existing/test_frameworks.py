"""Checkpoints inside transformers' Trainer and Lightning: killed, each goes on to the very weights of the run that was never killed."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

PROGRAMS = Path(__file__).parent / "programs"
SOURCE = Path(__file__).resolve().parents[3] / "src"

pytestmark = pytest.mark.slow


def run(folder, ranks, program, name, dies=0):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE), "PYTHONWARNINGS": "ignore"}
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    command = [sys.executable, *launcher, str(PROGRAMS / program), name, f"{name}.log", str(dies)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode != 0) == bool(dies), f"{done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
    return done.stderr


def check(folder, ranks, program):
    """A run that is killed twice against one that is not: the same weights, and a step that was done again was the same samples again."""
    run(folder, ranks, program, "whole")
    run(folder, ranks, program, "cut", 14 // ranks)
    said = run(folder, ranks, program, "cut", 24 // ranks)
    said += run(folder, ranks, program, "cut")
    assert said.count("goes on at step") == 2, said
    whole, cut = (torch.load(folder / f"{name}.end")["model"] for name in ("whole", "cut"))
    assert all(torch.equal(whole[name], cut[name]) for name in whole)
    diary, again = (set((folder / f"{name}.log").read_text().splitlines()) for name in ("whole", "cut"))
    assert diary == again
    assert len(diary) == 30


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.skipif(find_spec("transformers") is None or find_spec("accelerate") is None, reason="transformers and accelerate are not installed")
def test_a_trainer_of_transformers_that_was_killed_ends_with_the_same_weights(tmp_path, ranks):
    check(tmp_path, ranks, "hftrain.py")


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.skipif(find_spec("lightning") is None, reason="lightning is not installed")
def test_a_trainer_of_lightning_that_was_killed_ends_with_the_same_weights(tmp_path, ranks):
    check(tmp_path, ranks, "pltrain.py")

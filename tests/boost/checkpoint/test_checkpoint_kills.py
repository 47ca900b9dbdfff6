"""SIGKILL at any instant: the newest checkpoint that verifies is gone on from, and every sample is trained exactly once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "programs" / "kills.py"


def killed(folder, kills, seed):
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, PROGRAM, folder / "job", str(kills), str(seed)],
        env=env,
        capture_output=True,
        text=True,
        timeout=60 + 10 * kills,
        check=False,
    )
    assert done.stdout, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stdout


@pytest.mark.parametrize(("kills", "seed"), [(10, 1), pytest.param(200, 7, marks=pytest.mark.slow)])
def test_nothing_is_lost_and_nothing_is_trained_twice(tmp_path, kills, seed):
    told, out = killed(tmp_path, kills, seed)
    assert told["kills"] == kills, out
    assert not told["wrong"], out
    assert (told["missing"], told["twice"]) == (0, 0), out

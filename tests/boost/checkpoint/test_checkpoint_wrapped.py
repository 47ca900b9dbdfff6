"""Models in DDP, in torch.compile, in both, and with sharded tables: saved under the names of the plain model and restored to the bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parent / "programs" / "wrapped.py"


def test_every_wrapping_is_saved_and_restored_to_the_bit(tmp_path):
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, PROGRAM, tmp_path], env=env, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    names = ("plain", "compiled", "ddp", "ddp of compiled", "compiled ddp", "ddp with a compiled part", "sharded")
    assert done.stdout.splitlines() == [f"{name}: step 1, differs: []" for name in names]

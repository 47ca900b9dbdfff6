"""`ett run` and `ett report` on the programs of this folder."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
ETT = str(Path(sys.executable).parent / "ett")


class Runs:
    """A runs folder of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.env = {key: value for key, value in os.environ.items() if not key.startswith(("ETT_", "TORCH_COMPILE", "TORCHINDUCTOR"))}
        self.env |= {"OMP_NUM_THREADS": "1", "COLUMNS": "120", "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}

    def ett(self, *words, code=0, **env):
        done = subprocess.run([ETT, *map(str, words)], env=self.env | env, cwd=self.folder, capture_output=True, text=True, timeout=600, check=False)
        assert code is None or done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def run(self, job, program, *words, ett=(), code=0, **env):
        """(last line as JSON where it is any, ettrain's own lines)."""
        done = self.ett("run", "--runs", "runs", "--job", job, *ett, "--", sys.executable, PROGRAMS / f"{program}.py", *words, code=code, **env)
        lines = done.stdout.strip().splitlines()
        return json.loads(lines[-1]) if lines else {}, [line for line in done.stderr.splitlines() if line.startswith("ettrain: ")]

    def report(self, job):
        """The recompilations, as JSON."""
        return json.loads(self.ett("report", job, "--runs", "runs", "--recompiles", "--json").stdout)["recompiles"]

    def text(self, job):
        """The same as text."""
        return self.ett("report", job, "--runs", "runs", "--recompiles").stdout


@pytest.fixture
def runs(tmp_path):
    return Runs(tmp_path)


@pytest.fixture(scope="module")
def module_runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("shapes"))

"""Jobs without a supervisor: a folder, the environment that `ett run` would set, and what is read back."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ettrain.account.ledger import account
from ettrain.beat import read_beat
from ettrain.events import decode
from ettrain.jobpaths import JobPaths, attempt_name
from ettrain.jobreader import JobReader

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / "src/ettrain"
INJECT = HOME / "record/inject"
PROGRAMS = Path(__file__).parent / "programs"


class Job:
    """One job's folder."""

    def __init__(self, root):
        self.root = Path(root)
        self.paths = JobPaths(self.root)
        self.cwd = self.root.parent

    def env(self, attempt=0, **more):
        """What a process below `ett run` finds in its environment."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("ETT_", "RANK", "WORLD_SIZE", "PYTHONPATH", "PYTHONDONTWRITE"))}
        inherited = more.pop("PYTHONPATH", "")
        clean.update(
            PYTHONPATH=str(INJECT) + (os.pathsep + inherited if inherited else ""),
            ETT_JOB_DIR=str(self.root), ETT_ATTEMPT=str(attempt), ETT_SUPERVISOR_PID=str(os.getpid()), ETT_HOME=str(HOME),
            OMP_NUM_THREADS="1", TORCH_CPP_LOG_LEVEL="ERROR",
        )
        clean.update({k: str(v) for k, v in more.items()})
        return clean

    def run(self, *words, attempt=0, code=0, timeout=120, python=sys.executable, input=None, env=None, **more):
        """Run Python with these words under the recorder; `code=None` accepts any end."""
        command = [python, *map(str, words)]
        environment = self.env(attempt, **more) if env is None else env
        done = subprocess.run(command, env=environment, cwd=self.cwd, capture_output=True, text=True, timeout=timeout, input=input, check=False)
        assert code is None or done.returncode == code, f"code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def program(self, name, *words, **more):
        """Run a program of tests/record/programs; returns the JSON object in its last line."""
        done = self.run(PROGRAMS / f"{name}.py", *words, **more)
        return json.loads(done.stdout.strip().splitlines()[-1])

    def journals(self, attempt=0):
        """Name -> records, of every journal of an attempt."""
        folder = self.paths.attempt(attempt_name(attempt))
        return {path.stem: read_lines(path) for path in sorted(folder.glob("*.jsonl"))} if folder.is_dir() else {}

    def records(self, attempt=0, kind=None, name=None):
        """Records of the attempt's only journal."""
        (found,) = self.journals(attempt).values()
        return [r for r in found if (kind is None or r["k"] == kind) and (name is None or r.get("name") == name)]

    def beat(self, attempt=0):
        """The attempt's only beat page."""
        (path,) = self.paths.attempt(attempt_name(attempt)).glob("*.beat")
        return read_beat(path)

    def history(self):
        """What JobReader makes of it."""
        return JobReader(self.paths).read()

    def accounted(self):
        """What the accounting makes of it."""
        return account(self.history())


def free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def read_lines(path):
    """Every line must be a record."""
    lines = Path(path).read_bytes().split(b"\n")
    assert lines.pop() == b"", f"{path} ends in a torn line"
    records = [decode(line) for line in lines]
    assert None not in records
    return records


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path / "job")


@pytest.fixture(scope="module")
def module_job(tmp_path_factory):
    return Job(tmp_path_factory.mktemp("module") / "job")

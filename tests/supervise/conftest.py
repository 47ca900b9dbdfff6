"""`ett run` as a user calls it, with commands that need no torch."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ettrain.account.ledger import Ledger, account
from ettrain.jobpaths import JobPaths
from ettrain.jobreader import JobReader
from ettrain.journal import JournalTail

ETT = str(Path(sys.executable).parent / "ett")
RANK = [sys.executable, str(Path(__file__).parent / "programs" / "rank.py")]


class Runner:
    """Runs commands under `ett run` as job 'job' of a runs folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs = folder / "runs"
        self.paths = JobPaths(self.runs / "job")
        self.env = {key: value for key, value in os.environ.items() if not key.startswith("ETT_")}
        self.started: list[subprocess.Popen] = []

    def words(self, *command, ett=(), job="job"):
        return [ETT, "run", "--runs", str(self.runs), "--job", job, *map(str, ett), "--", *map(str, command)]

    def run(self, *command, ett=(), job="job", **more):
        """Run to the end; text unless told otherwise."""
        more = {"capture_output": True, "text": True, "timeout": 60, "env": self.env, "cwd": self.folder} | more
        return subprocess.run(self.words(*command, ett=ett, job=job), check=False, **more)

    def start(self, *command, ett=(), job="job", **more):
        """Start and go on."""
        more = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": self.env, "cwd": self.folder} | more
        process = subprocess.Popen(self.words(*command, ett=ett, job=job), **more)
        self.started.append(process)
        return process

    def records(self, kind=None):
        """The supervisor's records."""
        if not self.paths.supervisor_journal.exists():
            return []
        records = JournalTail(self.paths.supervisor_journal).read_new()
        return [record for record in records if kind in (None, record["k"])]

    def ledger(self) -> Ledger:
        return account(JobReader(self.paths).read()).ledger

    def wait(self, condition, limit_s=20.0):
        """Wait until `condition()` is true; returns its value."""
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            value = condition()
            if value:
                return value
            time.sleep(0.005)
        raise AssertionError("waited in vain")

    def rank_pids(self, count=1):
        """Wait for that many ranks to be met; their process ids."""

        def met():
            files = sorted(self.paths.attempts.glob("*/rank-*.jsonl"))
            heads = [JournalTail(file).read_new()[0] for file in files if file.read_bytes().count(b"\n")]
            return heads if len(heads) >= count else None

        return [head["pid"] for head in self.wait(met)]


@pytest.fixture
def ett(tmp_path):
    runner = Runner(tmp_path)
    yield runner
    for process in runner.started:
        if process.poll() is None:
            for pid in tree_of(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        process.communicate()


def tree_of(pid):
    """A process and all below it, itself first."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        children = []
    return [pid, *(below for child in children for below in tree_of(int(child)))]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rsplit(b")", 1)[1].split()[0] != b"Z"
    except OSError:
        return False


@pytest.fixture
def is_alive():
    return alive


@pytest.fixture
def rank():
    """Words of a command that is a rank."""
    return RANK

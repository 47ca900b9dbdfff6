"""Runs a job under `ett run` as a user would, watches its processes from outside, and does to it what a test wants."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from truth import Seen, Truth, truth_of

from ettrain.account.ledger import Account, account, number_of
from ettrain.jobpaths import JobPaths
from ettrain.jobreader import JobReader

HERE = Path(__file__).resolve().parent
PROGRAM = str(HERE / "programs" / "train.py")
BIN = Path(sys.executable).parent
PYTHON = sys.executable
ETT = str(BIN / "ett")
TORCHRUN = str(BIN / "torchrun")
SAMPLES_PER_STEP = 4


@dataclass
class Done:
    """How a run ended."""

    code: int
    out: str
    err: str


class Job:
    """One logical job in a folder of its own; `run` may be called again to go on with it."""

    def __init__(self, folder: Path, *, world: int = 2, steps: int = 60) -> None:
        self.folder, self.world, self.steps = folder, world, steps
        self.runs, self.out, self.diary = folder / "runs", folder / "out", folder / "diary"
        self.seen = Seen()
        self.process: subprocess.Popen | None = None
        self.offsets: dict[Path, int] = {}
        self.heads: dict[Path, dict] = {}
        self.written: list[dict] = []

    # ---- starting

    def program(self, *arguments: str) -> list[str]:
        words = ["--diary", self.diary, "--out", self.out, "--steps", self.steps, "--batch", SAMPLES_PER_STEP, *arguments]
        return [PROGRAM, *map(str, words)]

    def command(self, *arguments: str) -> list[str]:
        if self.world == 1:
            return [PYTHON, *self.program(*arguments)]
        return [TORCHRUN, "--standalone", "--nproc-per-node", str(self.world), *self.program(*arguments)]

    def run(self, *arguments: str, ett=(), command=None, env=None, during=None, name="job", under_ett=True) -> Done:
        """Run to the end; `during(job)` is called meanwhile."""
        words = command or self.command(*arguments)
        if under_ett:
            words = [ETT, "run", "--runs", str(self.runs), "--job", name, *map(str, ett), "--", *words]
        out, err = self.folder / "stdout", self.folder / "stderr"
        environment = (
            {key: value for key, value in os.environ.items() if not key.startswith("ETT_")} | {"OMP_NUM_THREADS": "1"} | (env or {})
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        with out.open("wb") as stdout, err.open("wb") as stderr:
            self.seen.begun.append(time.monotonic_ns())
            self.process = subprocess.Popen(words, stdout=stdout, stderr=stderr, env=environment, cwd=self.folder)
            watcher = Watcher(self.process.pid, self.seen)
            try:
                if during is not None:
                    during(self)
                code = self.process.wait(timeout=200)
            finally:
                if self.process.poll() is None:
                    print(err.read_text(), file=sys.stderr)
                    end_tree(self.process.pid)
                watcher.stop()
        if not under_ett:
            self.seen.ends.setdefault(self.process.pid, watcher.ended)
        return Done(code, out.read_text(), err.read_text())

    # ---- meanwhile

    def entries(self) -> list[dict]:
        """All that the processes wrote down so far, in order, with pid and launch; reads only what is new."""
        for path in self.diary.glob("*.jsonl"):
            offset = self.offsets.get(path, 0)
            with path.open("rb") as file:
                file.seek(offset)
                lines = file.read().split(b"\n")[:-1]
            self.offsets[path] = offset + sum(len(line) + 1 for line in lines)
            for line in lines:
                entry = json.loads(line)
                self.heads.setdefault(path, entry)
                self.written.append({**entry, "pid": self.heads[path]["pid"], "launch": self.heads[path]["launch"]})
        return self.written

    def wait_for(self, what: str, *, rank: int = 0, step: int | None = None, times: int = 1) -> dict:
        """Wait until a rank has written that down (so often)."""
        until = time.monotonic() + 120
        while time.monotonic() < until and self.process.poll() is None:
            found = [e for e in self.entries() if e["what"] == what and e["rank"] == rank and (step is None or e["step"] == step)]
            if len(found) >= times:
                return found[times - 1]
            time.sleep(0.005)
        raise AssertionError(f"rank {rank} never wrote {what!r} step {step} ({times} times)")

    def kill(self, pid: int) -> None:
        """SIGKILL."""
        self.seen.kills[pid] = time.monotonic_ns()
        os.kill(pid, signal.SIGKILL)

    def kill_in_step(self, low: int, high: int, *, rank: int, times: int = 1, seed: int) -> int:
        """SIGKILL a rank at a random instant of a random step in [low, high]; returns the step."""
        chance = random.Random(seed)
        step = chance.randint(low, high)
        entry = self.wait_for("step_begin", rank=rank, step=step, times=times)
        time.sleep(chance.uniform(0, 0.02))
        self.kill(entry["pid"])
        return step

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Tell `ett run` to stop."""
        self.seen.stops.append(time.monotonic_ns())
        self.process.send_signal(number)

    # ---- afterwards

    def truth(self) -> Truth:
        return truth_of(self.diary, self.seen)

    def account(self, name: str = "job") -> Account:
        return account(JobReader(JobPaths(self.runs / name)).read())


class Watcher(threading.Thread):
    """Notes when each process below `root` ends, and `root` itself."""

    def __init__(self, root: int, seen: Seen) -> None:
        super().__init__(daemon=True)
        self.root, self.seen = root, seen
        self.ended = 0
        self.over = threading.Event()
        self.pids: dict[int, int] = {}
        self.known: set[int] = {root}
        self.poll = select.poll()
        self.start()

    def run(self) -> None:
        root = os.pidfd_open(self.root)
        self.poll.register(root, select.POLLIN)
        while not self.over.is_set() or self.pids:
            if not self.ended:
                self.look(self.root)
            for fd, _ in self.poll.poll(10):
                t = time.monotonic_ns()
                self.poll.unregister(fd)
                os.close(fd)
                if fd == root:
                    self.ended = t
                else:
                    self.seen.ends[self.pids.pop(fd)] = t
            if self.over.is_set():
                for fd in self.pids:
                    os.close(fd)
                break

    def look(self, pid: int) -> None:
        """Meet the processes below `pid` that train or launch: children, and their children."""
        for child in children_of(pid):
            if child not in self.known:
                try:
                    fd = os.pidfd_open(child)
                except OSError:
                    continue
                self.known.add(child)
                self.pids[fd] = child
                self.poll.register(fd, select.POLLIN)
            self.look(child)

    def stop(self) -> None:
        self.over.set()
        self.join()


def children_of(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def tree_of(pid: int) -> list[int]:
    return [pid, *(below for child in children_of(pid) for below in tree_of(child))]


def end_tree(pid: int) -> None:
    """SIGKILL a process and all below it."""
    for one in tree_of(pid):
        try:
            os.kill(one, signal.SIGKILL)
        except ProcessLookupError:
            pass


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rsplit(b")", 1)[1].split()[0] != b"Z"
    except OSError:
        return False


# ---- comparing


def agree(job: Job, *, failures: int, preemptions: int = 0, name: str = "job", blind_s: float = 0.0) -> Account:
    """ettrain's figures are the truth's, within 1 percentage point and 0.2 s; prints both.

    `blind_s`: the last seconds, which a recording from inside the launcher cannot see.
    """
    truth, found = job.truth(), job.account(name)
    ledger = found.ledger
    rows = [
        ("ETT %", truth.ett_pct, ledger.ett_pct, 1.0),
        ("wall", truth.wall_s, ledger.wall_ns / 1e9, 0.2 + blind_s),
        ("TTS", truth.tts_s, ledger.time_to_start_ns / 1e9, 0.2),
        ("unsaved", truth.unsaved_s, ledger.unsaved_ns / 1e9, 0.2),
    ]
    for index, (true, mine) in enumerate(zip(truth.incidents, ledger.incidents, strict=False)):
        rows.append((f"TTR {index}", true.ttr_s, mine.time_to_recover_ns / 1e9, 0.2))
        rows.append((f"unsaved {index}", true.unsaved_s, mine.unsaved_ns / 1e9, 0.2))
    counts = [
        ("attempts", truth.attempts, len(ledger.attempts)),
        ("incidents", len(truth.incidents), len(ledger.incidents)),
        ("failures", failures, number_of(ledger, "failure")),
        ("preemptions", preemptions, number_of(ledger, "preemption")),
        ("steps", truth.steps, ledger.steps),
        ("resumed at", [i.resumed for i in truth.incidents], [i.resumed_step for i in ledger.incidents]),
    ]
    table = [f"{what:12} {true:9.3f} {mine:9.3f}  {mine - true:+.3f}" for what, true, mine, _ in rows]
    table += [f"{what:12} {true!s:>9} {mine!s:>9}" for what, true, mine in counts]
    table += [f"{'':12} {'truth':>9} {'ettrain':>9}  by {[(i.diagnosis.cls, i.diagnosis.rank) for i in ledger.incidents]}"]
    text = "\n".join(table)
    print(text)
    wrong = [row for row in rows if abs(row[1] - row[2]) > row[3]] + [row for row in counts if row[1] != row[2]]
    untracked = sum(leaf.wall_ns for leaf in ledger.leaves if leaf.path == "untracked") / 1e9
    leaves = "\n".join(f"{leaf.path:40} {leaf.wall_ns / 1e9:8.3f}" for leaf in ledger.leaves)
    assert not wrong, f"differ: {[row[0] for row in wrong]}\n{text}\n{leaves}"
    assert untracked < max(0.02 * truth.wall_s, 0.2), f"untracked {untracked:.3f} s\n{leaves}"
    assert truth.ids == list(range(job.steps * job.world * SAMPLES_PER_STEP)), "a sample was trained twice or never"
    return found

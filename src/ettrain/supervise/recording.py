"""The supervisor's journal, its sign of life, and its claim on the job: one supervisor per job at a time.

Where the job's folder cannot be written nothing is recorded, and one line on stderr says so.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ettrain import clock
from ettrain import events as e
from ettrain._version import VERSION
from ettrain.beat import memory_beat, open_beat
from ettrain.errors import UsageError
from ettrain.events import Record
from ettrain.jobpaths import JobPaths, attempt_key
from ettrain.journal import JournalWriter
from ettrain.supervise import processes

_HELD: Final = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
_TOUCH_NS: Final = 10_000_000_000
_SAME_START_NS: Final = 1_000_000_000
_NO_ATTEMPT: Final = 1 << 62


def tell(text: str) -> None:
    """One line on stderr; whether anybody can read it must not matter to the training."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            print(f"ettrain: {text}", file=sys.stderr, flush=True)


def job_name_for(words: list[str]) -> str:
    """A name from the program's file and the time: train-1129-160455-017."""
    script = next((word for word in words if word.endswith((".py", ".sh"))), words[0])
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(script).stem).strip("-_") or "job"
    return f"{stem[:40]}-{clock.time_of_day()}-{os.getpid() % 1000:03d}"


def next_launch(paths: JobPaths) -> int:
    """Number of the attempt that is to begin."""
    numbers = [attempt_key(name)[0] for name in paths.attempt_names()]
    return max((number for number in numbers if number < _NO_ATTEMPT), default=-1) + 1


class Recording:
    """The supervisor's journal and sign of life, and the lock that keeps a second supervisor off the job.

    Raises:
        UsageError: another supervisor runs this job, or its processes are still alive.
    """

    def __init__(self, paths: JobPaths) -> None:
        self.paths = paths
        self.beat: e.Slots = memory_beat()
        self._writer: JournalWriter | None = None
        self._lock = -1
        self._touched = 0
        try:
            paths.attempts.mkdir(parents=True, exist_ok=True)
            self._lock = _claim(paths)
            self._writer = JournalWriter(paths.supervisor_journal)
        except OSError as error:
            self._lost(error)
            return
        with contextlib.suppress(OSError):
            self.beat = open_beat(paths.supervisor_beat, os.getpid())

    @property
    def on(self) -> bool:
        """Whether anything is recorded."""
        return self._writer is not None

    def open_job(self, asked: Record) -> None:
        """Say who records, and what was asked."""
        wall, t = clock.wall_pair()
        self.write({
            "k": "head", "schema": e.SCHEMA, "t": t, "wall": wall, "boot": clock.boot_id(), "host": os.uname().nodename,
            "pid": os.getpid(), "role": "supervisor", "start": clock.process_start_ns(os.getpid()), "ettrain": VERSION,
        })  # fmt: skip
        self.write({"k": "job", "t": t, **asked})
        self.alive()
        if self.on:
            with contextlib.suppress(OSError):
                self.paths.job_file.write_text(json.dumps({"job": self.paths.name, **asked}, indent=1) + "\n", encoding="utf-8")

    def make_attempt(self, name: str) -> None:
        """Make the attempt's folder."""
        if self.on:
            with contextlib.suppress(OSError):
                self.paths.attempt(name).mkdir(exist_ok=True)

    def write(self, record: Record) -> None:
        """Append a record, if there is anywhere to."""
        if self._writer is None:
            return
        try:
            self._writer.write(record)
        except OSError as error:
            self._lost(error)

    def alive(self) -> None:
        """Leave a sign of life: on this host the page's content, for other hosts now and then the file's time."""
        now = self.beat[e.B_ACTIVE_T] = clock.monotonic_ns()
        if self.on and now - self._touched > _TOUCH_NS:
            self._touched = now
            with contextlib.suppress(OSError):
                os.utime(self.paths.supervisor_beat)

    def close(self) -> None:
        """Say goodbye and let go of the job."""
        self.write({"k": "bye", "t": clock.monotonic_ns()})
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _lost(self, error: OSError) -> None:
        self._writer = None
        tell(f"cannot record ({error.strerror}: {error.filename or self.paths.supervisor_journal}); the command runs all the same")


def _claim(paths: JobPaths) -> int:
    """A descriptor that holds the job until it is closed, by its holder's end at the latest.

    Raises:
        UsageError: somebody else holds it.
        OSError: the journal cannot be opened.
    """
    lock = os.open(paths.supervisor_journal, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            os.close(lock)
            raise UsageError(_busy(paths)) from None
    left = list(_living_ranks(paths))
    if left:
        os.close(lock)
        pids = ", ".join(map(str, left[:8]))
        raise UsageError(
            f"job '{paths.name}' is still training: process(es) {pids} of its last attempt live, without a supervisor. "
            f"End them (kill {pids.replace(',', '')}), or take another --job"
        )
    return lock


def _busy(paths: JobPaths) -> str:
    head: Record = {}
    with contextlib.suppress(OSError), paths.supervisor_journal.open("rb") as file:
        for line in file:
            record = e.decode(line) or {}
            head = record if record.get("k") == "head" else head
    who = f"process {head['pid']} on {head.get('host')}" if "pid" in head else "another process"
    return f"job '{paths.name}' is being run by {who}. Wait for it, stop it, or take another --job"


def _living_ranks(paths: JobPaths) -> Iterator[int]:
    """Processes of the job's last attempt that still live on this host."""
    last = next_launch(paths) - 1
    for name in paths.attempt_names():
        if attempt_key(name)[0] == last:
            for path in paths.attempt(name).glob("rank-*.jsonl"):
                head = head_of(path) or {}
                if head.get("boot") == clock.boot_id() and there(head) and not processes.is_zombie(int(head["pid"])):
                    yield int(head["pid"])


def head_of(path: Path) -> Record | None:
    """First record of a journal; None where it is not there yet."""
    try:
        with path.open("rb") as file:
            line = file.readline(e.MAX_LINE + 1)
    except OSError:
        return None
    return e.decode(line) if line.endswith(b"\n") else None


def there(head: Record) -> bool:
    """Whether the process that wrote this head on this boot is still there, if only as a zombie, and not another with its number."""
    pid, told = head.get("pid"), head.get("start")
    start = clock.process_start_ns(pid) if isinstance(pid, int) else None
    return start is not None and (not isinstance(told, int) or abs(start - told) < _SAME_START_NS)

"""What a publication costs, written into the folder of the job that asked: a journal of its own, beside the ranks' and never among them.

Where the folder cannot be written the publication goes on, unbilled. Not here: what the report says of it.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

from ettrain import clock
from ettrain.boost.publish.request import Request
from ettrain.events import SCHEMA
from ettrain.jobpaths import JobPaths
from ettrain.journal import JournalWriter


class Bill:
    """One process's share of one publication.

    Args:
        request: what is published.
        place: the request's folder.
        role: `asker` or `publisher`.
    """

    def __init__(self, request: Request, place: Path, role: str) -> None:
        self._said = {"k": "publish", "id": request.id, "place": str(place), "name": request.name, "checkpoint": request.checkpoint}
        self._writer: JournalWriter | None = None
        if not request.job:
            return
        wall, t = clock.wall_pair()
        folder = JobPaths(Path(request.job)).publishes
        head = {
            "k": "head",
            "schema": SCHEMA,
            "t": t,
            "wall": wall,
            "boot": clock.boot_id(),
            "host": os.uname().nodename,
            "pid": os.getpid(),
            "role": role,
        }
        try:
            folder.mkdir(exist_ok=True)
            self._writer = JournalWriter(folder / f"{request.id}-{role}-p{os.getpid()}-{wall // 1_000_000}.jsonl", exclusive=True)
            self._writer.write(head)
        except OSError:
            self._writer = None

    def write(self, act: str, **more: Any) -> None:
        """Add a record, with the CPU time used so far."""
        if self._writer is None:
            return
        try:
            self._writer.write({**self._said, "t": clock.monotonic_ns(), "act": act, "cpu": cpu_ns(), **more})
        except OSError:
            self._writer = None

    def close(self) -> None:
        """Close the journal."""
        if self._writer is not None:
            self._writer.close()


def cpu_ns() -> int:
    """CPU time of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return int(sum(one.ru_utime + one.ru_stime for one in used) * 1e9)


def peak_bytes() -> int:
    """Largest memory this process has had resident, 0 where the kernel does not tell. `getrusage` would tell its parent's before the exec."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return 0

"""The ranks' processes of one launch on this host: met by their journals, followed through pidfds to their end.

The end of a process wakes the watcher at once; only new journals are looked for by polling, and more seldom once all are there.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from ettrain import clock
from ettrain.beat import read_beat
from ettrain.events import MAX_LINE, Record, decode
from ettrain.jobpaths import JobPaths, attempt_key
from ettrain.supervise import processes
from ettrain.supervise.recording import head_of, there

BUSY_S: Final = 0.05
CALM_S: Final = 0.25
"""How long to sleep at most while ranks are awaited, and later."""
_SETTLED_NS: Final = 10_000_000_000
"""When no rank has come for so long, all are there."""


class _Rank(NamedTuple):
    pid: int
    attempt: str
    journal: Path


class Watch:
    """Follows the ranks of launch number `launch`.

    Args:
        paths: the job's.
        launch: number of the launch.
        write: takes a `gone` record for each process that ends.
        codes: exit codes of processes that the caller has reaped, filled by the caller.
    """

    def __init__(self, paths: JobPaths, launch: int, write: Callable[[Record], None], codes: Mapping[int, int]) -> None:
        self._attempts = paths.attempts
        self._launch = launch
        self._write = write
        self._codes = codes
        self._boot = clock.boot_id()
        self._met: set[Path] = set()
        self._followed: dict[int, _Rank] = {}
        self._polled: dict[int, tuple[_Rank, Record]] = {}
        """Where the kernel has no pidfds: number -> rank and head."""
        self._poll = select.poll()
        self._others: set[int] = set()
        self._last_met = 0
        self.ranks = 0
        """Ranks' processes met so far, on any host."""
        self.last_gone: dict[str, int] = {}
        """Attempt -> when the last of its processes on this host ended, so far."""
        self.failed: set[str] = set()
        """Attempts of which a process is known to have ended badly."""

    def also(self, pidfd: int | None) -> None:
        """Wake up when that process ends, too."""
        if pidfd is not None:
            self._others.add(pidfd)
            self._poll.register(pidfd, select.POLLIN)

    def wait(self, limit_s: float = CALM_S) -> None:
        """Sleep until a process ends, at most for a moment; note who came and who went."""
        self._look()
        settled = self._followed and clock.monotonic_ns() - self._last_met > _SETTLED_NS
        pause_s = min(limit_s, CALM_S if settled else BUSY_S)
        self._note(self._poll.poll(int(pause_s * 1000)))
        for key, (rank, head) in list(self._polled.items()):
            if not there(head) or processes.is_zombie(rank.pid):
                del self._polled[key]
                self._gone(rank, clock.monotonic_ns(), None)

    def finish(self) -> None:
        """Note what ended since, and let go."""
        self._look()
        self._note(self._poll.poll(0))
        for fd in [*self._followed, *self._others]:
            os.close(fd)
        self._followed.clear()
        self._others.clear()
        self._poll = select.poll()

    def hangs(self, limit_ns: int) -> bool:
        """Whether no rank has shown life for so long, once one of them has finished a step; ranks that are ending do not count."""
        ranks = [*self._followed.values(), *(rank for rank, _ in self._polled.values())]
        beats = [(rank, beat) for rank in ranks if (beat := read_beat(rank.journal.with_suffix(".beat"))) is not None]
        if not any(beat.step for _, beat in beats):
            return False
        since = clock.monotonic_ns() - limit_ns
        if any(max(beat.active_t, beat.step_t, *(t for _, t in beat.stack), 0) >= since for _, beat in beats):
            return False
        return not all(_is_ending(rank.journal) for rank, _ in beats)

    def _note(self, ready: list[tuple[int, int]]) -> None:
        t = clock.monotonic_ns()
        for fd, _ in ready:
            self._poll.unregister(fd)
            if fd in self._others:
                self._others.discard(fd)
            else:
                self._gone(self._followed.pop(fd), t, processes.exit_code_of(fd))
            os.close(fd)

    def _gone(self, rank: _Rank, t: int, code: int | None) -> None:
        record: Record = {"k": "gone", "t": t, "pid": rank.pid, "attempt": rank.attempt}
        code = self._codes.get(rank.pid) if code is None else code
        if code is not None:
            record["code"] = code
            if code:
                self.failed.add(rank.attempt)
        self.last_gone[rank.attempt] = t
        self._write(record)

    def _look(self) -> None:
        try:
            names = [name for name in os.listdir(self._attempts) if attempt_key(name)[0] == self._launch]
            for name in names:
                with os.scandir(self._attempts / name) as entries:
                    found = [entry.name for entry in entries if entry.name.startswith("rank-") and entry.name.endswith(".jsonl")]
                for file in found:
                    path = self._attempts / name / file
                    if path not in self._met:
                        self._meet(path, name)
        except OSError:
            return

    def _meet(self, path: Path, attempt: str) -> None:
        head = head_of(path)
        if head is None:
            return
        self._met.add(path)
        self.ranks += 1
        pid = head.get("pid")
        if head.get("boot") != self._boot or not isinstance(pid, int):
            return
        self._last_met = clock.monotonic_ns()
        rank = _Rank(pid, attempt, path)
        fd = processes.open_pidfd(pid) if there(head) else None
        if fd is not None:
            self._followed[fd] = rank
            self._poll.register(fd, select.POLLIN)
        elif there(head):
            self._polled[pid] = rank, head
        else:
            self._gone(rank, self._last_met, None)


def _is_ending(journal: Path) -> bool:
    """Whether the interpreter has begun to end in good order, which may take long and shows no life."""
    try:
        with journal.open("rb") as file:
            file.seek(max(0, journal.stat().st_size - 4 * MAX_LINE))
            return any((decode(line) or {}).get("k") == "exit" for line in file)
    except OSError:
        return False

"""Processes below the supervisor, through Linux's /proc and pidfds. Needs no cooperation of theirs."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path
from typing import Final

from ettrain import clock
from ettrain.settings import ENV_DETACHED

_PR_SET_CHILD_SUBREAPER: Final = 36
_DETACHED: Final = f"{ENV_DETACHED}=1".encode()
_GIVE_UP_NS: Final = 30_000_000_000
"""A process that SIGKILL did not end within this time sits in the kernel (a dead disk or device) and may do so for ever."""


def adopt_orphans() -> bool:
    """Become the parent of descendants whose parent died, so that none escapes; False where the kernel refuses."""
    try:
        return bool(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def open_pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None if it is gone or the kernel has none."""
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return None


def exit_code_of(pidfd: int) -> int | None:
    """Exit code (negative: signal) of an ended child, left for its parent's own wait; None if it is no child or was reaped."""
    try:
        info = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except OSError:
        return None
    if info is None:
        return None
    return int(info.si_status) if info.si_code == os.CLD_EXITED else -int(info.si_status)


def reap() -> dict[int, int]:
    """Exit codes (negative: signals) of children, own and adopted, that have ended: pid -> code."""
    codes: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return codes
        if pid == 0:
            return codes
        codes[pid] = os.waitstatus_to_exitcode(status)


def family(pid: int) -> tuple[list[int], list[int]]:
    """(children, all descendants) of a process; zombies left out, and what is meant to outlive the attempt, with all below it."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            stat = _stat(int(entry.name))
            if stat is not None and stat[1] != "Z":
                children.setdefault(stat[0], []).append(int(entry.name))
    found: list[int] = []
    queue = [pid]
    while queue:
        parent = queue.pop(0)
        children[parent] = below = [child for child in children.get(parent, []) if not _is_detached(child)]
        found.extend(below)
        queue.extend(below)
    return children.get(pid, []), found


def _is_detached(pid: int) -> bool:
    """Whether it was started to outlive the attempt: a publisher, which needs no device."""
    try:
        return _DETACHED in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def is_zombie(pid: int) -> bool:
    """Whether the process has ended and its parent has not noticed, as where a container's first process never does."""
    stat = _stat(pid)
    return stat is not None and stat[1] == "Z"


def _stat(pid: int) -> tuple[int, str] | None:
    """(parent, state) of a process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rsplit(b")", 1)[1].split()
        return int(fields[1]), fields[0].decode()
    except (OSError, IndexError, ValueError):
        return None


class Ending:
    """Ends everything below this process: SIGTERM from the top, after `grace_s` SIGKILL to all.

    SIGTERM goes to children only, and to what becomes one when its parent has died: a trainer that saves its state on SIGTERM
    loses it when its data workers get the signal too. Driven by calls, so that the caller goes on watching.
    """

    def __init__(self, grace_s: float) -> None:
        self._kill_t = clock.monotonic_ns() + int(grace_s * 1e9)
        self._told: set[int] = set()
        self.survivors: list[int] = []
        """Processes that even SIGKILL did not end."""

    def hurry(self) -> None:
        """No more grace."""
        self._kill_t = min(self._kill_t, clock.monotonic_ns())

    def finished(self) -> bool:
        """Send what is due; True once nothing is left, or nothing that could still be ended."""
        children, living = family(os.getpid())
        now = clock.monotonic_ns()
        late = now >= self._kill_t
        for pid in living if late else [pid for pid in children if pid not in self._told]:
            self._told.add(pid)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        if now >= self._kill_t + _GIVE_UP_NS:
            self.survivors = living
            return True
        return not living


def oom_kills() -> int:
    """Processes of this cgroup that the kernel has killed for memory so far; 0 where it does not tell."""
    for path in _memory_event_files():
        try:
            for line in path.read_text(encoding="ascii").splitlines():
                key, _, value = line.partition(" ")
                if key == "oom_kill" and value.strip().isdigit():
                    return int(value)
        except OSError:
            continue
    return 0


def _memory_event_files() -> list[Path]:
    files: list[Path] = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                files.append(Path(f"/sys/fs/cgroup{path}") / "memory.events")
            elif "memory" in controllers.split(","):
                files.append(Path(f"/sys/fs/cgroup/memory{path}") / "memory.oom_control")
    return [*files, Path("/sys/fs/cgroup/memory.events"), Path("/sys/fs/cgroup/memory/memory.oom_control")]

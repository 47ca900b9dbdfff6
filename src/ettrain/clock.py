"""The only place that asks what time it is.

Durations come from the monotonic clock, which on Linux all processes of one boot share. The wall clock is only read
together with the monotonic one, as a pair, so that a step of it changes nothing. Not here: any arithmetic on times.
"""

from __future__ import annotations

import os
import time

monotonic_ns = time.monotonic_ns
thread_cpu_ns = time.thread_time_ns
"""CPU time of the calling thread."""


def wall_pair() -> tuple[int, int]:
    """(wall ns since the epoch, monotonic ns) of the same instant, to within a microsecond."""
    before = time.monotonic_ns()
    wall = time.time_ns()
    after = time.monotonic_ns()
    return wall, (before + after) // 2


def boot_id() -> str:
    """What tells one boot of one host from all others; two processes that share it share the monotonic clock."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return f"{os.uname().nodename}-unknown-boot"


def process_start_ns(pid: int) -> int | None:
    """Monotonic instant at which process `pid` was created, in ns to within 10 ms; None if it has ended (a zombie has) or /proc does not tell."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rsplit(b")", 1)[1].split()
        ticks = int(fields[19])
    except (OSError, ValueError, IndexError):
        return None
    if fields[0] in (b"Z", b"X"):
        return None
    since_boot_ns = ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    suspended_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
    return since_boot_ns - suspended_ns


def time_of_day() -> str:
    """Local month, day and time, e.g. 1129-160455: for names, never for arithmetic."""
    return time.strftime("%m%d-%H%M%S")


def sleep_s(seconds: float) -> None:
    """Wait; here so that everything that waits does so through one door."""
    time.sleep(seconds)

"""A clock under control, put in place of ettrain's own before the recorder is imported: days of training are recorded in seconds."""

from __future__ import annotations

from ettrain import clock

EPOCH_NS = 1_700_000_000_000_000_000


class FakeClock:
    """One host's clock. `t` is its monotonic clock in ns; the wall clock is `wall_less_t` ahead of it."""

    def __init__(self) -> None:
        self.t = 1_000_000_000_000
        self.wall_less_t = EPOCH_NS
        self.boot = "boot-0"
        clock.monotonic_ns = lambda: self.t
        clock.wall_pair = lambda: (self.t + self.wall_less_t, self.t)
        clock.boot_id = lambda: self.boot
        clock.process_start_ns = lambda pid: self.t

    def pass_s(self, seconds: float) -> int:
        """Let time pass; returns the instant before."""
        before = self.t
        self.t += int(seconds * 1e9)
        return before

"""When the next checkpoint is due: every so many steps, every so many seconds, or as often as pays.

A plain object without a clock: the caller says what time it is (monotonic ns), so the answer can be asked for on one rank and told to the
others. Not here: saving, and the formulas (`ettrain.predict.interval`).
"""

from __future__ import annotations

import math
import re
from collections import deque
from statistics import median
from typing import Final, Literal

from ettrain.errors import UsageError
from ettrain.predict.failures import Experience, Mttf, expect
from ettrain.predict.interval import asynchronous

FIRST_S: Final = 60.0
"""`auto` knows nothing before the first save: so long after the begin it makes one."""
SHORTEST_S: Final = 10.0
"""`auto` saves no more often: what a failure takes back then is little beside the restart."""
_REMEMBERED: Final = 5
_RETRY_S: Final = 60.0
_NS: Final = 1_000_000_000
_UNITS: Final = {
    "s": 1,
    "sec": 1,
    "second": 1,
    "seconds": 1,
    "min": 60,
    "minute": 60,
    "minutes": 60,
    "h": 3600,
    "hour": 3600,
    "hours": 3600,
}

Kind = Literal["auto", "steps", "time", "never"]


class Interval:
    """Says after each step whether to save. Made by `parse`.

    A save is counted from its begin, the instant that it holds. While one is under way (`began`, and neither `saved` nor `failed` since),
    none is due; what became due meanwhile is due right after.
    """

    def __init__(self, kind: Kind, *, steps: int = 0, seconds: float = 0.0) -> None:
        self.kind: Kind = kind
        self.steps = steps
        self._asked_s = seconds
        self._mttf = expect(Experience(failures=0, exposure_s=0.0))
        self._blocking_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._durable_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._last_step = self._last_ns = self._seen_ns = -1
        self._took_ns = 0
        self.under_way = False
        """Whether a save has begun that neither `saved` nor `failed` has ended."""

    @classmethod
    def parse(cls, every: str | float | None) -> Interval:
        """The interval that a user asks for.

        Args:
            every: "auto"; a whole number of steps; a time with its unit, e.g. "300s", "5min", "1.5h"; None = only when asked to.

        Raises:
            UsageError: it is none of these.
        """
        if every is None:
            return cls("never")
        if isinstance(every, int) and not isinstance(every, bool) and every > 0:
            return cls("steps", steps=every)
        if isinstance(every, str):
            word = every.strip().lower()
            if word == "auto":
                return cls("auto")
            match = re.fullmatch(r"(\d+(?:\.\d*)?)\s*([a-z]+)", word)
            if match and match[2] in _UNITS and float(match[1]) > 0:
                return cls("time", seconds=float(match[1]) * _UNITS[match[2]])
        raise UsageError(
            f'every={every!r}: say "auto", a number of steps above 0 such as 500, or a time with its unit such as "300s", "5min" or "1h".'
        )

    # ---- what is told to it

    def begin(self, step: int, now_ns: int) -> None:
        """Training begins or goes on after `step` steps, all of which are saved or need not be."""
        self._last_step, self._last_ns, self._seen_ns = step, now_ns, now_ns

    def expect(self, mttf: Mttf) -> None:
        """How often the job must be expected to fail."""
        self._mttf = mttf

    def learned(self, blocking_s: float, durable_s: float) -> None:
        """What a save took in an earlier attempt, e.g. by the manifest of the checkpoint that was restored."""
        if not self._durable_s and min(blocking_s, durable_s) >= 0 and math.isfinite(blocking_s + durable_s):
            self._blocking_s.append(blocking_s)
            self._durable_s.append(durable_s)

    def began(self, step: int, now_ns: int) -> None:
        """A save of `step` begins, whether or not it was due."""
        self._last_step, self._last_ns = step, now_ns
        self.under_way = True

    def saved(self, step: int, blocking_ns: int, durable_ns: int, now_ns: int) -> None:
        """A save is durable.

        Args:
            step: which.
            blocking_ns: what it cost the training, also by slowing down the steps beside it where that is known.
            durable_ns: from its begin until now.
            now_ns: now.
        """
        if not self.under_way and step >= self._last_step:
            self._last_step, self._last_ns = step, now_ns - durable_ns
        self.under_way = False
        self._blocking_s.append(max(0, blocking_ns) / _NS)
        self._durable_s.append(max(0, durable_ns) / _NS)

    def failed(self, now_ns: int) -> None:
        """The save under way did not succeed: the next one is tried after a minute, or the interval where that is shorter."""
        self.under_way = False
        if self._last_ns >= 0:
            tau_ns = int(self.seconds * _NS) if self.seconds is not None else 0
            self._last_ns = min(self._last_ns, now_ns - max(0, tau_ns - int(_RETRY_S * _NS)))

    # ---- what it says

    def due(self, step: int, now_ns: int) -> bool:
        """Whether to save now that `step` steps are done. To be asked after every step, on one rank.

        By time it is the step whose end is nearest to the interval's, by steps each multiple of the number asked for, counted from step 0.
        """
        if self._last_ns < 0:
            self.begin(max(0, step - 1), now_ns)
        took_ns, self._took_ns, self._seen_ns = self._took_ns, now_ns - self._seen_ns, now_ns
        step_ns = min(took_ns, self._took_ns)  # of two, so that one long step, e.g. with a compilation in it, moves nothing
        if self.under_way or self.kind == "never" or step <= self._last_step:
            return False
        if self.kind == "steps":
            return step // self.steps > self._last_step // self.steps
        tau_ns = (self.seconds or 0.0) * _NS
        return now_ns - self._last_ns + min(step_ns, tau_ns) / 2 >= tau_ns

    @property
    def seconds(self) -> float | None:
        """The interval now; None where it is not one of time."""
        if self.kind == "time":
            return self._asked_s
        if self.kind != "auto":
            return None
        if not self._durable_s:
            return min(FIRST_S, max(SHORTEST_S, asynchronous(1.0, 0.0, self._mttf.seconds)))
        return max(SHORTEST_S, asynchronous(self.blocking_s or 0.0, self.durable_s or 0.0, self._mttf.seconds))

    @property
    def blocking_s(self) -> float | None:
        """What a save costs the training: the median of the last ones."""
        return median(self._blocking_s) if self._blocking_s else None

    @property
    def durable_s(self) -> float | None:
        """From a save's begin until it is durable: the longest of the last ones."""
        return max(self._durable_s, default=None)

    @property
    def next_ns(self) -> int | None:
        """When the next save is due; None where that is not a matter of time, or nothing has begun."""
        return None if self.seconds is None or self._last_ns < 0 else self._last_ns + int(self.seconds * _NS)

    @property
    def next_step(self) -> int | None:
        """Steps done when the next save is due; None where that is a matter of time."""
        return (max(0, self._last_step) // self.steps + 1) * self.steps if self.kind == "steps" else None

    @property
    def why(self) -> str:
        """The interval in words, and where it comes from."""
        if self.kind == "never":
            return "when the program asks"
        if self.kind == "steps":
            return f"every {self.steps:,} steps, as asked"
        if self.kind == "time":
            return f"every {self._asked_s:g} s, as asked"
        if self.seconds is None or self.blocking_s is None or self.durable_s is None:
            return f"first after {self.seconds:.0f} s, then as often as pays"
        rule = (
            "no more often than every 10 s"
            if self.seconds == SHORTEST_S
            else "a save takes so long"
            if self.seconds == self.durable_s
            else ""
        )
        failures = f"a failure expected every {self._mttf.seconds / 3600:.3g} h ({self._mttf.why})"
        cost = f"a save costs {self.blocking_s:.3g} s and is durable after {self.durable_s:.3g} s"
        return f"every {self.seconds:.3g} s: {f'{rule}; ' if rule else ''}{cost}, {failures}"

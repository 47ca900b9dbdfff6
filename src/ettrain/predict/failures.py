"""How often a job must be expected to fail, from what it and the fleet's other jobs have been through.

A Poisson rate whose logarithm is taken to be normal before anything is known: wide enough that a few failures in a row count at once, and
none at all is no reason to expect none ever. What matters to the choice of an interval is the mean of the rate, which its cost is
linear in; so the mean time between failures told here is one over that. Seconds are floats. Not here: what counts as a failure (`account`), and where the figures come from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

ASSUMED_MTTF_S: Final = 86_400.0
"""Before anything is known: one failure a day. Most jobs fail less often, and to save too often costs least where little is known."""
_PER_DEVICE_DAY: Final = 6.5e-3 / 8
"""Failures per device and day of a large cluster of eight devices a node, which decides where that is more than one a day.
Source: arXiv 2410.21680, RSC-1."""
_SPREAD: Final = math.log(5)
"""Standard deviation of the rate's logarithm: jobs differ by factors of five."""
_GRID: Final = 240
_REACH: Final = 6.0
_FLEET_FAILURES: Final = 4.0
"""The fleet counts for at most so many failures, so that a job's own experience soon outweighs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """What a job has been through."""

    failures: int
    """Times it was interrupted without warning."""
    exposure_s: float
    """Seconds in which it could have been: its attempts, first to last."""
    devices: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Mttf:
    """Mean time between failures to expect, and why."""

    seconds: float
    failures: int
    """Seen, of this job."""
    exposure_s: float
    """In so many seconds."""
    fleet_failures: int
    fleet_jobs: int
    assumed: bool
    """Nothing was seen: it is an assumption."""

    @property
    def why(self) -> str:
        """What it rests on, in words."""
        own = f"{self.failures} in {_hours(self.exposure_s)} of this job"
        if self.fleet_jobs:
            return f"{own}, {self.fleet_failures} in {self.fleet_jobs} other job{'s' if self.fleet_jobs > 1 else ''}"
        return "assumed: no failure was seen yet" if self.assumed else own


def expect(own: Experience, fleet: Iterable[Experience] = (), *, devices: int | None = None) -> Mttf:
    """Mean time between failures to expect of a job.

    Args:
        own: what it has been through so far.
        fleet: what other jobs have been through; a job of twice as many devices is taken to fail twice as often.
        devices: the job's; None = `own.devices`.
    """
    size = max(1, devices if devices is not None else own.devices)
    others = [other for other in fleet if other.exposure_s > 0]
    failures = sum(other.failures for other in others)
    exposure_s = sum(other.exposure_s * max(1, other.devices) / size for other in others)
    weight = min(1.0, _FLEET_FAILURES / failures) if failures else 1.0
    prior_s = min(ASSUMED_MTTF_S, 86_400.0 / (_PER_DEVICE_DAY * size))
    rate = _mean_rate(1 / prior_s, own.failures + weight * failures, max(0.0, own.exposure_s) + weight * exposure_s)
    return Mttf(
        seconds=1 / rate,
        failures=own.failures,
        exposure_s=own.exposure_s,
        fleet_failures=failures,
        fleet_jobs=len(others),
        assumed=not own.failures and not failures,
    )


def _mean_rate(assumed: float, failures: float, exposure_s: float) -> float:
    """Mean of the rate, per second, after that many failures in that time, when before its mean was `assumed`."""
    middle = math.log(assumed) - _SPREAD * _SPREAD / 2
    width = math.sqrt(1 / (1 / (_SPREAD * _SPREAD) + failures))
    peak = _peak(middle, failures, exposure_s)
    points = [peak + width * _REACH * (2 * index / _GRID - 1) for index in range(_GRID + 1)]
    logs = [failures * x - math.exp(x) * exposure_s - ((x - middle) / _SPREAD) ** 2 / 2 for x in points]
    top = max(logs)
    weights = [math.exp(log - top) for log in logs]
    return sum(weight * math.exp(x) for weight, x in zip(weights, points, strict=True)) / sum(weights)


def _peak(middle: float, failures: float, exposure_s: float) -> float:
    """Where the logarithm of the rate is likeliest: the root of a falling function, by halving."""
    low, high = middle - 60, middle + 60
    for _ in range(80):
        x = (low + high) / 2
        if failures - math.exp(x) * exposure_s - (x - middle) / (_SPREAD * _SPREAD) > 0:
            low = x
        else:
            high = x
    return (low + high) / 2


def _hours(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 2 * 3600 else f"{seconds / 3600:.0f} h"

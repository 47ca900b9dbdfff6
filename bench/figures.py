"""What the benches say about their samples: medians, 99th percentiles, ratios with an interval; and the lines they print.

Not here: any measuring.
"""

from __future__ import annotations

import json
import os
import platform
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

RESAMPLES = 2000
FEWEST = 5


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and 99th percentile of samples, in the samples' unit."""

    median: float
    p99: float
    samples: int

    def less(self, cost: float) -> Spread:
        """The same after taking off what measuring itself costs."""
        return Spread(self.median - cost, self.p99 - cost, self.samples)


@dataclass(frozen=True, slots=True)
class Ratio:
    """Median of paired ratios, with the 95% bootstrap interval of that median."""

    value: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        """Fewer than five pairs support no interval, so none is shown."""
        return f"{self.value:.3g}" + (f"  [{self.low:.3g}, {self.high:.3g}]" if self.pairs >= FEWEST else f"  ({self.pairs} turns)")


def spread(samples: Sequence[float]) -> Spread:
    """Median and 99th percentile."""
    ordered = sorted(samples)
    return Spread(median(ordered), ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))], len(ordered))


def ratio(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """Median of above[i] / below[i] over pairs that were measured next to each other."""
    low, value, high = interval([a / b for a, b in zip(above, below, strict=True)])
    return Ratio(value, low, high, len(above))


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """(low, median, high): the median and its 95% bootstrap interval; the seed is fixed, so the same samples give the same text."""
    chance = random.Random(1)
    medians = sorted(median(chance.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return medians[int(0.025 * RESAMPLES)], median(values), medians[int(0.975 * RESAMPLES)]


def machine() -> dict[str, Any]:
    """Where and when: a figure without it is worth nothing."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "cpu": _cpu(),
        "python": platform.python_version(),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def say(text: str = "") -> None:
    """One line of the result, at once."""
    print(text, flush=True)


def progress(text: str) -> None:
    """What is being measured now, on stderr."""
    print(f"... {text}", file=sys.stderr, flush=True)


def rows(lines: Sequence[Sequence[str]]) -> None:
    """A table: the first column left, the others right."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        say(
            "  "
            + "  ".join(
                text.rjust(width) if column else text.ljust(width) for column, (text, width) in enumerate(zip(line, widths, strict=True))
            )
        )


def keep(path: str | None, results: dict[str, Any]) -> None:
    """Write the results as JSON, if a file was asked for."""
    if path is not None:
        Path(path).write_text(json.dumps(results, indent=1, default=_plain) + "\n", encoding="utf-8")


def _plain(value: Any) -> Any:
    return {name: getattr(value, name) for name in value.__slots__}

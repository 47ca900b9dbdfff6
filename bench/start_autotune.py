"""What pinned winners spare at the start of a job: `python bench/start_autotune.py [--repeats N] [--shapes N] [--json FILE]`.

A program of a few batched matrix products under Inductor's max-autotune is run twice per repeat: with the search, and with the winners of
that search in a file (`ett autotune JOB --write`, `ett run --autotune`). Each run has an Inductor cache folder of its own, empty.

Medians over repeats. CPU seconds hold on a busy machine, wall seconds belong to the moment. On the CPU a product has few candidates; on a GPU tens.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from figures import keep, machine, progress, ratio, rows, say
from jobs import ETT, Jobs
from turns import CHILDREN


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What pinned winners spare at the start of a job.")
    parser.add_argument("--repeats", type=int, default=3, help="pairs of runs")
    parser.add_argument("--shapes", type=int, default=2, choices=range(1, 5), help="matrix products of different shapes")
    parser.add_argument("--json", metavar="FILE", help="also write the figures there")
    arguments = parser.parse_args()
    here = machine()
    say(str(here))
    pairs = []
    for repeat in range(arguments.repeats):
        progress(f"repeat {repeat + 1} of {arguments.repeats}")
        with tempfile.TemporaryDirectory(prefix="ett-bench-") as name:
            pairs.append(_pair(Jobs(Path(name)), arguments.shapes))
    _show(pairs)
    keep(arguments.json, {"machine": here, "shapes": arguments.shapes, "pairs": pairs})


def _pair(jobs: Jobs, shapes: int) -> list[dict[str, Any]]:
    """With the search, then with its winners pinned."""
    words = [sys.executable, str(CHILDREN / "products.py"), str(shapes)]
    figures = []
    for job, ett in (("search", ()), ("pinned", ("--autotune", "tuned.toml"))):
        took = jobs.run(job, words, ett=ett)
        figures.append({"searches": took.told["searches"], "worst": took.told["worst"], "cpu_s": took.cpu_s, "wall_s": took.wall_s})
        figures[-1]["search_s"] = jobs.ask("autotune", job)["search_s"]
        if job == "search":
            write = [ETT, "autotune", job, "--runs", str(jobs.folder / "runs"), "--write", "tuned.toml"]
            subprocess.run(write, check=True, capture_output=True, cwd=jobs.folder)
    return figures


def _show(pairs: list[list[dict[str, Any]]]) -> None:
    say(f"\nmedian of {len(pairs)} repeats")
    names = ("searches", "search_s", "cpu_s", "wall_s", "worst")
    table = [("", *names)]
    for index, name in ((0, "search"), (1, "pinned")):
        table.append((name, *(f"{median(pair[index][figure] for pair in pairs):.4g}" for figure in names)))
    rows(table)
    for figure in ("cpu_s", "wall_s"):
        say(f"  {figure}: {ratio([pair[1][figure] for pair in pairs], [pair[0][figure] for pair in pairs])} of what it was")


if __name__ == "__main__":
    main()

"""What dynamic sources spare at the start of a job: `python bench/start_recompiles.py [--repeats N] [--program jagged|lm] [--json FILE]`.

A program is run as a job twice per repeat: first as it is, then with `ett run --dynamic-sources auto`, which has learned from the first.
Each run has an Inductor cache folder of its own, empty, so every graph is compiled in full; each repeat has a runs folder of its own.

  jagged  a small model over four features of varying length, an integer that changes, a smaller last batch; forward and backward
  lm      examples/lm: a language model on documents of varying length; its evaluation needs a graph of its own in any case

Medians over repeats. CPU seconds hold on a busy machine, wall seconds belong to the moment. Results of the two runs are compared.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any, Final

from figures import keep, machine, progress, ratio, rows, say
from jobs import Jobs, Took
from turns import CHILDREN

LM: Final = Path(__file__).resolve().parent.parent / "examples" / "lm"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What dynamic sources spare at the start of a job.")
    parser.add_argument("--repeats", type=int, default=3, help="pairs of runs")
    parser.add_argument("--program", choices=["jagged", "lm"], default="jagged", help="what is run")
    parser.add_argument("--json", metavar="FILE", help="also write the figures there")
    arguments = parser.parse_args()
    here = machine()
    say(str(here))
    pairs = []
    for repeat in range(arguments.repeats):
        progress(f"repeat {repeat + 1} of {arguments.repeats}")
        with tempfile.TemporaryDirectory(prefix="ett-bench-") as name:
            pairs.append(_pair(Jobs(Path(name)), arguments.program))
    _show(pairs)
    keep(arguments.json, {"machine": here, "program": arguments.program, "pairs": pairs})


def _pair(jobs: Jobs, program: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The program as it is, then with what that run taught."""
    words = [sys.executable, str(CHILDREN / "jagged.py")]
    if program == "lm":
        data = jobs.folder / "corpus.txt"
        jobs.run("data", [sys.executable, str(LM / "make_data.py"), "--out", str(data), "--documents", "700"])
        words = [sys.executable, str(LM / "train.py"), "--data", str(data), "--compile", "--workers", "0", "--eval-documents", "72", "--resume", "never"]
    first = _figures(jobs, "first", jobs.run("first", words))
    return first, _figures(jobs, "second", jobs.run("second", words, ett=("--dynamic-sources", "auto")))


def _figures(jobs: Jobs, job: str, took: Took) -> dict[str, Any]:
    report = jobs.ask("report", job, "--recompiles")
    told = report["recompiles"]
    again = [one for one in told["recompilations"] if not one["refused"]]
    return {
        "compilations": told["functions"] + sum(one["count"] for one in again),
        "curable": sum(one["count"] for one in again if one["curable"]),
        "compile_s": told["first_s"] + sum(one["wall_s"] for one in again),
        "applied": (told["applied"] or [""])[0],
        "wall_s": took.wall_s,
        "cpu_s": took.cpu_s,
        "told": took.told,
    }


def _show(pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    say(f"\nmedian of {len(pairs)} repeats")
    names = ("compilations", "compile_s", "cpu_s", "wall_s")
    table = [("", *names)]
    for index, name in ((0, "as it is"), (1, "--dynamic-sources auto")):
        table.append((name, *(f"{median(pair[index][figure] for pair in pairs):.4g}" for figure in names)))
    rows(table)
    for figure in names[1:]:
        say(f"  {figure}: {ratio([pair[1][figure] for pair in pairs], [pair[0][figure] for pair in pairs])} of what it was")
    say(f"  applied: {pairs[-1][1]['applied']}")
    same = [pair[0]["told"] == pair[1]["told"] for pair in pairs if pair[0]["told"]]
    if same:
        say(f"  results the same bit for bit in {sum(same)} of {len(same)} pairs")


if __name__ == "__main__":
    main()

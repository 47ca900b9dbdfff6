"""What an inference model at the end of a training costs its devices: `python bench/publish.py [--quick] [--kind aoti] [--json FILE]`.

Two ranks train a few steps of a model whose table has 64 MiB and save a checkpoint. Then, in turns:
  none     nothing: what the end of the job takes by itself
  inside   rank 0 exports, reads back and compares while the other rank waits, as programs do
  publish  `ett.publish`
Time to shut down is that of `ett report` (last step to the release of the devices); time to updated model is from the save to the model being
there. On a machine with no core to spare the publisher competes with whatever runs next; here nothing does.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from figures import keep, machine, progress, ratio, rows, say, spread
from jobs import ETT, Jobs
from turns import CHILDREN, take_turns

ROWS = 64 * 1024 * 1024 // 4 // 32
WAYS = ("none", "inside", "publish")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What an inference model at the end of a training costs its devices.")
    parser.add_argument("--quick", action="store_true", help="two turns")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--kind", choices=("export", "aoti"), default="export")
    parser.add_argument("--json", metavar="FILE", help="also write the figures there")
    arguments = parser.parse_args()
    turns = 2 if arguments.quick else arguments.turns
    results: dict[str, Any] = {"machine": machine(), "turns": turns, "torch": torch.__version__, "kind": arguments.kind}
    say(f"{results['machine']}, torch {torch.__version__}, export={arguments.kind}, {turns} turns")
    with tempfile.TemporaryDirectory() as folder:
        bench = _Bench(Path(folder), arguments.kind)
        take_turns(WAYS, bench.run, turns)
    shut, updated = bench.shut, bench.updated
    lines = [("", "time to shut down", "to that of inside", "time to updated model", "CPU beside the job")]
    for way in WAYS:
        new = f"{spread(updated[way]).median:.1f} s" if updated[way] else "-"
        cpu = f"{spread(bench.cpu).median:.1f} s" if way == "publish" else "-"
        lines.append((way, f"{spread(shut[way]).median:.2f} s", str(ratio(shut[way], shut["inside"])), new, cpu))
    rows(lines)
    more = [one - other for one, other in zip(shut["publish"], shut["none"], strict=True)]
    say(
        f"ett.publish adds {spread(more).median:.2f} s to the end of the job; the model is there after {ratio(updated['publish'], updated['inside'])} of the time"
    )
    keep(arguments.json, {**results, "shut_down_s": shut, "updated_s": updated, "cpu_s": bench.cpu})


class _Bench:
    """Runs one job at a time."""

    def __init__(self, folder: Path, kind: str) -> None:
        self._folder, self._kind, self._number = folder, kind, 0
        self._jobs = Jobs(folder)
        self.shut: dict[str, list[float]] = {way: [] for way in WAYS}
        self.updated: dict[str, list[float]] = {way: [] for way in WAYS}
        self.cpu: list[float] = []

    def run(self, way: str) -> list[float]:
        """One job; the publisher has ended before the next begins."""
        self._number += 1
        job = f"{way}-{self._number}"
        progress(job)
        place = self._folder / job
        place.mkdir()
        words = [
            str(Path(ETT).parent / "torchrun"),
            "--standalone",
            "--nproc-per-node",
            "2",
            str(CHILDREN / "publishes.py"),
            way,
            self._kind,
            str(ROWS),
            str(place),
        ]
        took = self._jobs.run(job, words, ett=["--wait-publish"])
        told = self._jobs.ask("report", job)
        self.shut[way].append(told["time_to_shut_down_s"])
        if way == "inside":
            self.updated[way].append(took.told["updated_s"])
        for published in told["publishes"]:
            if published["outcome"] != "published":
                sys.exit(f"{job}: {published}")
            self.updated[way].append(published["time_to_updated_model_s"])
            self.cpu.append(published["cpu_s"])
        return [told["time_to_shut_down_s"]]


if __name__ == "__main__":
    main()

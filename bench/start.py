"""Start and recovery, part by part and all together: `python bench/start.py [--repeats N] [--example dlrm|lm] [--variants NAME ...] [--json FILE]`.

An example is trained on `--ranks` ranks, two by default (torchrun, gloo), compiled by Inductor. Each turn of a variant: a machine with empty cache folders starts
the job, the last rank is killed (SIGKILL) after a checkpoint, and another machine with empty cache folders goes on from there to the end. A machine
is its folders for temporary files and compiled code; nothing else is shared but the job's own folder and what the variant brings.

  plain     the program as it is
  cache     ett run --compile-cache, filled by an earlier job
  dynamic   ett run --dynamic-sources auto, taught by an earlier job (lm only: dlrm's shapes do not vary)
  overlap   fast_train.py: ett.Startup, ett.first_batch, ett.warm_compile (dlrm only)
  all       everything that applies

Variants take turns in one run; the ratios are of neighbours. Figures are the report's own; the final weights are compared bit for bit.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from figures import keep, machine, progress, ratio, rows, say

from ettrain.account.ledger import account
from ettrain.jobpaths import JobPaths
from ettrain.jobreader import JobReader

ROOT: Final = Path(__file__).resolve().parent.parent
ETT: Final = "import sys; from ettrain.cli import main; sys.exit(main(sys.argv[1:]))"
LENGTH: Final = {"dlrm": (200, 40, 60), "lm": (80, 20, 30)}
"""Steps in all, between checkpoints, and before the last rank is killed."""
VARIANTS: Final = {"dlrm": ("plain", "cache", "overlap", "all"), "lm": ("plain", "cache", "dynamic", "all")}
TOO_LONG_S: Final = 900.0


@dataclass(frozen=True, slots=True)
class Turn:
    """One job: cold start, kill, recovery on another cold machine. Seconds."""

    start_s: float
    recover_s: float
    compile_s: float
    """Compilation, first and again, of both attempts, wall view."""
    path_s: float
    """Critical path of the first start's stages, where ett.Startup recorded it; else 0."""
    weights: str
    """Digest of the final weights."""


class Bench:
    """Runs turns of one example."""

    def __init__(self, example: str, root: Path, *, delay_s: float, ranks: int) -> None:
        self.example = example
        self.ranks = ranks
        self.root = root
        self.delay_s = delay_s
        self.steps, self.save_every, self.kill_after = LENGTH[example]
        self.data = root / "data"
        rows_option = ["--rows", "20000"] if example == "dlrm" else []
        subprocess.run(
            [sys.executable, str(self._file("make_data.py")), "--out", str(self.data), *rows_option], check=True, stdout=subprocess.DEVNULL
        )

    def _file(self, name: str) -> Path:
        return ROOT / "examples" / self.example / name

    def teach(self, variants: Sequence[str]) -> None:
        """Earlier jobs that fill the compile caches and teach the dynamic sources."""
        for variant in variants:
            if variant != "plain" and variant != "overlap":
                self._launch(variant, self.root / "runs", f"teacher-{variant}", self.root / f"teacher-{variant}", kill=False)

    def turn(self, variant: str, number: int) -> Turn:
        """One job."""
        job = f"{variant}-{number}"
        out = self.root / "out" / job
        runs = self.root / "runs"
        self._launch(variant, runs, job, out, kill=True)
        self._launch(variant, runs, job, out, kill=False)
        told = account(JobReader(JobPaths(runs / job)).read())
        history = JobReader(JobPaths(runs / job)).read()
        ledger = told.ledger
        walls = {leaf.path: leaf.wall_ns for leaf in ledger.leaves}
        compiling = sum(ns for path, ns in walls.items() if path.rsplit("/", 1)[-1] in ("compile", "recompile"))
        recover = next((incident.time_to_recover_ns for incident in ledger.incidents if incident.time_to_recover_ns), 0)
        return Turn(
            (ledger.time_to_start_ns or 0) / 1e9, recover / 1e9, compiling / 1e9, critical_path_s(history), digest(out / "checkpoint.pt")
        )

    def _launch(self, variant: str, runs: Path, job: str, out: Path, *, kill: bool) -> None:
        """Start the job on a machine of its own; `kill` ends the last rank once a checkpoint is there."""
        with tempfile.TemporaryDirectory(prefix="ett-machine-", dir=self.root) as machine_folder:
            environment = {
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "TMPDIR": machine_folder,
                "TORCHINDUCTOR_CACHE_DIR": f"{machine_folder}/inductor",
            }
            environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
            process = subprocess.Popen(
                self._command(variant, runs, job, out), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
            if kill:
                self._kill_rank(runs / job, process)
            _, errors = process.communicate(timeout=TOO_LONG_S)
            if (process.returncode != 0) != kill:
                raise SystemExit(f"{job}: exit code {process.returncode}\n{errors.decode()[-3000:]}")

    def _command(self, variant: str, runs: Path, job: str, out: Path) -> list[str]:
        ett = [sys.executable, "-c", ETT, "run", "--quiet", "--runs", str(runs), "--job", job]
        if variant in ("cache", "all"):
            ett += ["--compile-cache", str(self.root / f"store-{variant}")]
        if self.example == "lm" and variant in ("dynamic", "all"):
            ett += ["--dynamic-sources", "auto"]
        program = "fast_train.py" if self.example == "dlrm" and variant in ("overlap", "all") else "train.py"
        words = [
            str(self._file(program)),
            "--data",
            str(self.data),
            "--out",
            str(out),
            "--compile",
            "--steps",
            str(self.steps),
            "--save-every",
            str(self.save_every),
        ]
        if self.example == "dlrm":
            words += ["--first-batch-delay", str(self.delay_s), "--eval-rows", "256", "--table-size", "1000", "--batch-size", "128"]
        else:
            words += ["--eval-documents", "64", "--layers", "1", "--dim", "32"]
        return [*ett, "--", sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(self.ranks), *words]

    def _kill_rank(self, job: Path, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + TOO_LONG_S
        reader = JobReader(JobPaths(job))
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
            if not (job / "supervisor.jsonl").exists():
                continue
            ranks = [rank for attempt in reader.read().attempts for rank in attempt.ranks if rank.rank == self.ranks - 1 and rank.alive]
            if ranks and ranks[0].steps >= self.kill_after:
                os.kill(ranks[0].pid, signal.SIGKILL)
                return
        raise SystemExit(f"{job.name}: the last rank never came to step {self.kill_after}")


def critical_path_s(history: Any) -> float:
    """Of the first attempt's ett.Startup, if there was one."""
    from ettrain.report.startgraph import startgraph_dict

    told = startgraph_dict(history)
    return float(told[0]["critical_path_s"]) if told else 0.0


def digest(path: Path) -> str:
    """Of the weights in a checkpoint."""
    import torch

    state = torch.load(path, weights_only=True)["model"]
    found = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        found.update(name.encode() + tensor.numpy().tobytes())
    return found.hexdigest()[:12]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Start and recovery, part by part and all together.")
    parser.add_argument("--example", choices=[*VARIANTS], nargs="+", default=[*VARIANTS], help="what is trained")
    parser.add_argument("--variants", nargs="+", metavar="NAME", help="only these beside plain (default: all that the example has)")
    parser.add_argument("--repeats", type=int, default=5, help="turns")
    parser.add_argument("--ranks", type=int, default=2, help="ranks, all on this machine")
    parser.add_argument("--delay", type=float, default=10.0, help="dlrm: by how much the data service's first row is late, seconds")
    parser.add_argument("--json", metavar="FILE", help="also write the figures there")
    arguments = parser.parse_args()
    results: dict[str, Any] = {"machine": machine(), "delay_s": arguments.delay}
    say(f"{machine()}; {arguments.repeats} turn(s)")
    for example in arguments.example:
        with tempfile.TemporaryDirectory(prefix="ett-bench-") as name:
            bench = Bench(example, Path(name), delay_s=arguments.delay, ranks=arguments.ranks)
            results[example] = measure(bench, arguments.variants, arguments.repeats)
    keep(arguments.json, results)


def measure(bench: Bench, wanted: Sequence[str] | None, repeats: int) -> dict[str, Any]:
    """Variants of one example, in turns."""
    example = bench.example
    variants = [variant for variant in VARIANTS[example] if wanted is None or variant == "plain" or variant in wanted]
    progress(f"{example}: earlier jobs")
    bench.teach(variants)
    turns: dict[str, list[Turn]] = {variant: [] for variant in variants}
    for number in range(repeats):
        for variant, taken in turns.items():
            progress(f"{example}: turn {number + 1} of {repeats}, {variant}")
            taken.append(bench.turn(variant, number))
    say()
    say(f"{example}: seconds, medians; ratios to plain of the same turn with 95% intervals")
    table = [["", "start", "recover", "compile", "critical path", "start / plain", "recover / plain", "compile / plain", "weights"]]
    plain = turns["plain"]
    for variant, taken in turns.items():
        figures = [f"{median(getattr(turn, field) for turn in taken):.1f}" for field in ("start_s", "recover_s", "compile_s", "path_s")]
        ratios = [
            str(ratio([getattr(turn, field) for turn in taken], [getattr(turn, field) for turn in plain]))
            for field in ("start_s", "recover_s", "compile_s")
        ]
        same = all(turn.weights == one.weights for turn, one in zip(taken, plain, strict=True))
        table.append([variant, *figures, *ratios, "same bits" if same else "differ"])
    rows(table)
    return {variant: [{name: getattr(turn, name) for name in turn.__slots__} for turn in taken] for variant, taken in turns.items()}


if __name__ == "__main__":
    main()

"""How fast training starts when compiling hides behind a slow first batch: `python bench/start_first_batch.py [--repeats N] [--json FILE]`.

examples/dlrm, compiled by inductor from an empty cache, with a data service whose first row comes `--delay` seconds late; plain (`train.py`)
and with ett.Startup, ett.first_batch and ett.warm_compile (`fast_train.py`), in turns. Both are recorded by `ett run`; the time to the first
step and its parts are the report's. Measured against: max(data, compile) x 1.1 + all the rest of the plain start. The checkpoints of the
two must be the same, bit for bit.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from figures import machine, say

from ettrain.account.ledger import account
from ettrain.jobpaths import JobPaths
from ettrain.jobreader import JobReader

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "dlrm"
ETT = "import sys; from ettrain.cli import main; sys.exit(main(sys.argv[1:]))"
PLAIN, FAST = "train.py", "fast_train.py"
ROWS = 20_000


@dataclass(frozen=True, slots=True)
class Start:
    """One start; seconds."""

    first_step_s: float
    """Launch to the end of the first step, training left out: the report's time to start."""
    data_s: float
    """Of it, billed to the first batch."""
    compile_s: float
    rest_s: float


@dataclass(frozen=True, slots=True)
class Pair:
    """The same start plain and fast, one after the other."""

    plain: Start
    fast: Start
    same_checkpoint: bool

    @property
    def bound_s(self) -> float:
        """What the fast one may take at most."""
        return max(self.plain.data_s, self.plain.compile_s) * 1.1 + self.plain.rest_s


def run_start(program: str, folder: Path, data: Path, delay_s: float) -> Start:
    """Run one of the two programs for three steps from an empty compile cache."""
    words = [str(EXAMPLE / program), "--data", str(data), "--out", str(folder / "out"), "--compile", "--first-batch-delay", str(delay_s)]
    words += ["--steps", "3", "--save-every", "0", "--eval-rows", "100", "--table-size", "1000", "--batch-size", "128"]
    command = [sys.executable, "-c", ETT, "run", "--quiet", "--job", "start", "--runs", str(folder / "runs"), "--", sys.executable, *words]
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    return read_start(folder / "runs" / "start")


def read_start(job: Path) -> Start:
    """The start of a recorded job's first attempt."""
    ledger = account(JobReader(JobPaths(job)).read()).ledger
    walls = {leaf.path: leaf.wall_ns / 1e9 for leaf in ledger.leaves}
    data, compiling = walls.get("idle/start/get_first_batch_data", 0.0), walls.get("idle/start/compile", 0.0)
    first = (ledger.time_to_start_ns or 0) / 1e9
    return Start(first, data, compiling, first - data - compiling)


def run_pair(delay_s: float, *, fast_first: bool = False) -> Pair:
    """Run both."""
    with tempfile.TemporaryDirectory(prefix="ett-start-") as name:
        root = Path(name)
        data = root / "criteo.tsv"
        subprocess.run(
            [sys.executable, str(EXAMPLE / "make_data.py"), "--out", str(data), "--rows", str(ROWS)], check=True, stdout=subprocess.DEVNULL
        )
        starts = {
            program: run_start(program, root / program, data, delay_s) for program in ([FAST, PLAIN] if fast_first else [PLAIN, FAST])
        }
        plain, fast = ((root / program / "out" / "checkpoint.pt").read_bytes() for program in (PLAIN, FAST))
        return Pair(starts[PLAIN], starts[FAST], plain == fast)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="How fast training starts when compiling hides behind a slow first batch.")
    parser.add_argument("--delay", type=float, default=30.0, help="by how much the data service's first row is late, seconds")
    parser.add_argument("--repeats", type=int, default=1, help="pairs of runs; medians are printed")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the figures there")
    arguments = parser.parse_args()
    say(f"{machine()}; first row {arguments.delay:g} s late; {arguments.repeats} pair(s)")
    pairs = [run_pair(arguments.delay, fast_first=turn % 2 == 1) for turn in range(arguments.repeats)]
    say("                    first step      data   compile      rest   (seconds, medians)")
    for name in ("plain", "fast"):
        starts = [getattr(pair, name) for pair in pairs]
        figures = [median(getattr(start, field) for start in starts) for field in ("first_step_s", "data_s", "compile_s", "rest_s")]
        say(f"  {name:<16}" + "".join(f"{figure:>10.1f}" for figure in figures))
    say(f"  bound            {median(pair.bound_s for pair in pairs):>9.1f}   max(data, compile) x 1.1 + rest, of the plain start")
    say(f"fast / plain   {median(pair.fast.first_step_s / pair.plain.first_step_s for pair in pairs):.2f}")
    say(f"fast / bound   {median(pair.fast.first_step_s / pair.bound_s for pair in pairs):.2f}")
    say(f"checkpoints the same, bit for bit: {'yes' if all(pair.same_checkpoint for pair in pairs) else 'NO'}")
    if arguments.json:
        content = {"machine": machine(), "delay_s": arguments.delay, "pairs": [asdict(pair) for pair in pairs]}
        arguments.json.write_text(json.dumps(content, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()

"""What a save costs the training, in seven ways: `python bench/checkpoint.py [--ranks 1|2] [--repeats N] [--gib 1.0] [--ways NAME ...] [--json FILE]`.

Each way trains the same model with AdamW in a process of its own (FSDP2 under torchrun with two ranks) and saves it several times; the
ways take turns, so that each ratio is of neighbours. Per save, medians over turns, the first save and the later ones apart:

  blocking    the call
  staging     what the optimizer's step waited for the state to be copied
  slower      by how much the steps beside the save took longer than those before it, summed up
  effective   the three together: what the save cost the training
  write       from the state being copied until all is on the disk, as a share of the disk's raw rate (direct I/O, same run)
  memory      peak above the same training without saves, as a share of the state, all processes

  torch.save  torch.save and fsync                      dcp.save     torch.distributed.checkpoint.save
  dcp thread  dcp.async_save as it comes                dcp process  the same with a process
  tuned       a process, one stager, shared memory, asynchronous staging
  nvrx        nvidia-resiliency-ext, if installed (no fsync; its CUDA calls taken out)
  ett         ett.Checkpointer
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from figures import keep, machine, progress, ratio, rows, say

HERE: Final = Path(__file__).resolve().parent
CHILD: Final = HERE / "children" / "saves.py"
WAYS: Final = ("torch.save", "dcp.save", "dcp thread", "dcp process", "tuned", "nvrx", "ett")
TOO_LONG_S: Final = 900.0

Told = list[dict[str, Any]]
"""Of one child: what each rank measured."""


def run(way: str, folder: Path, args: argparse.Namespace) -> Told:
    """One child to its end."""
    words = [str(CHILD), "--way", way, "--folder", str(folder), "--gib", str(args.gib), "--saves", str(args.saves)]
    command = [sys.executable, *words]
    if args.ranks > 1:
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(args.ranks), *words]
    env = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=TOO_LONG_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{way}: code {done.returncode}: {done.stderr[-2000:]}")
    told: Told = json.loads(done.stdout.strip().splitlines()[-1])
    return told


def effective(save: dict[str, float]) -> float:
    """What a save cost the training, seconds."""
    return save["blocking"] + save["staging"] + save["slower"]


def of(told: Told, value: Callable[[dict[str, float]], float], *, first: bool) -> float:
    """The slowest rank's value: of the first save, or the median of the later ones."""
    return max(value(rank["saves"][0]) if first else median(value(save) for save in rank["saves"][1:]) for rank in told)


def later(told: Told, name: str) -> float:
    """The slowest rank's median of one part of the later saves."""
    return of(told, lambda save: save[name], first=False)


def rate(told: Told) -> float:
    """Share of the disk's raw rate at which the later saves were written. Ranks share the disk, one after the other or side by side."""
    size = sum(rank["size"] for rank in told)
    raw = median(rank["raw_rate"] for rank in told) * (1 if len(told) == 1 else len(told))
    return size / later(told, "written") / raw


def table(results: dict[str, list[Told]]) -> None:
    """Seconds, medians over turns."""
    head = ["", "blocking 1st", "later", "staging", "slower", "effective 1st", "later", "write/raw", "memory/state"]
    lines = [head]
    for way, turns in results.items():

        def mid(value: Callable[[Told], float], turns: Sequence[Told] = turns) -> str:
            return f"{median(map(value, turns)):.3f}"

        lines.append([
            way,
            mid(lambda told: of(told, lambda save: save["blocking"], first=True)), mid(lambda told: later(told, "blocking")),
            mid(lambda told: later(told, "staging")), mid(lambda told: later(told, "slower")),
            mid(lambda told: of(told, effective, first=True)), mid(lambda told: of(told, effective, first=False)),
            mid(rate), mid(lambda told: sum(rank["memory_mib"] for rank in told) * (1 << 20) / sum(rank["size"] for rank in told)),
        ])  # fmt: skip
    rows(lines)


def ratios(results: dict[str, list[Told]], ours: str, base: str) -> None:
    """Of `ours` to `base`, turn by turn."""
    for name, value, first in (
        ("blocking, first save", lambda save: save["blocking"], True),
        ("blocking, later saves", lambda save: save["blocking"], False),
        ("effective cost, first save", effective, True),
        ("effective cost, later saves", effective, False),
    ):
        above = [of(told, value, first=first) for told in results[ours]]
        below = [of(told, value, first=first) for told in results[base]]
        say(f"  {name:28} {ratio(above, below)}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--saves", type=int, default=4, help="per turn; the first is shown apart")
    parser.add_argument("--gib", type=float, default=1.0, help="of parameters and optimizer state")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--folder", help="on the disk to be measured; default: the folder for temporary files")
    parser.add_argument("--json")
    args = parser.parse_args()
    ways = [way for way in args.ways if way != "nvrx" or importlib.util.find_spec("nvidia_resiliency_ext")]
    if len(ways) < len(args.ways):
        progress("nvidia-resiliency-ext is not installed: left out")
    results: dict[str, list[Told]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory(dir=args.folder) as scratch:
        for turn in range(args.repeats):
            for way in ways:
                progress(f"turn {turn + 1} of {args.repeats}: {way}")
                results[way].append(run(way, Path(scratch) / "saves", args))
    size = sum(rank["size"] for rank in results[ways[0]][0])
    raw = median(rank["raw_rate"] for turns in results.values() for told in turns for rank in told)
    say(f"{size / (1 << 30):.2f} GiB of state on {args.ranks} rank(s); seconds a save, medians of {args.repeats} turns")
    say(f"disk: {raw / 1e6:.0f} MB/s written directly")
    table(results)
    for base in ("dcp.save", "tuned"):
        if "ett" in results and base in results:
            say(f"ett to {base}, median of turns [95%]")
            ratios(results, "ett", base)
    say(f"machine: {machine()}")
    keep(args.json, {"machine": machine(), "ranks": args.ranks, "results": results})


if __name__ == "__main__":
    main()

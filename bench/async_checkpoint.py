"""What `ett run --async-checkpoint` leaves of a `torch.save`: `python bench/async_checkpoint.py [--mib N] [--turns N] [--json FILE]`.

One process, in turns: torch's own function into the page cache (what most programs do: a power cut loses it), the same and on the disk
(fsync), and in the background, where the file is on the disk before it appears. *Effective* adds what the steps took longer while the file was written.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from figures import keep, machine, ratio, rows, say, spread
from turns import CHILDREN


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What ett run --async-checkpoint leaves of a torch.save.")
    parser.add_argument("--mib", type=int, default=512, help="model and AdamW state")
    parser.add_argument("--turns", type=int, default=6, help="the first one, which makes the memory, is shown apart")
    parser.add_argument("--json", metavar="FILE", help="also write the figures there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("ETT_BENCH_DISK", ".")) as folder:
        command = [str(Path(sys.executable).parent / "ett"), "run", "--quiet", "--runs", f"{folder}/runs", "--async-checkpoint", "--"]
        command += [sys.executable, str(CHILDREN / "asyncsaves.py"), folder, str(arguments.mib), str(arguments.turns)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    blocking, effective = found["blocking"], found["effective"]
    say(f"{machine()}, {found['bytes'] / 2**20:.0f} MiB, {arguments.turns} turns")
    lines = [("", "first", "later: blocks", "to on disk", "effective", "to on disk")]
    for way, taken in blocking.items():
        later, whole = taken[1:], effective[way][1:]
        lines.append(
            (
                f"torch.save, {way}",
                f"{taken[0]:.3f} s",
                f"{spread(later).median:.3f} s",
                str(ratio(later, blocking["on disk"][1:])),
                f"{spread(whole).median:.3f} s",
                str(ratio(whole, effective["on disk"][1:])),
            )
        )
    rows(lines)
    keep(arguments.json, {"machine": machine(), **found})


if __name__ == "__main__":
    main()

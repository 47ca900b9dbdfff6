"""ettrain's side of `bench/ledger.py`: reads a job's folder and accounts for it, again each time a line arrives on stdin.

Each answer is a JSON line: seconds of the read and of the accounting, the bytes read, the memory peak so far, and what came out.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

from ettrain.account.ledger import account
from ettrain.jobpaths import JobPaths
from ettrain.jobreader import JobReader


def _status(file: str, name: str) -> int:
    found = re.search(rf"^{name}:\s*(\d+)", Path(file).read_text(encoding="ascii"), re.MULTILINE)
    return int(found[1]) if found else 0


def ask(reader: JobReader, now_wall_ns: int) -> dict[str, Any]:
    """Read what is new and account for the whole job."""
    bytes_before = _status("/proc/self/io", "rchar")
    begin = time.perf_counter()
    history = reader.read(now_wall_ns)
    read = time.perf_counter()
    ledger = account(history).ledger
    end = time.perf_counter()
    return {
        "read_s": read - begin,
        "account_s": end - read,
        "read_mb": (_status("/proc/self/io", "rchar") - bytes_before) / 1e6,
        "peak_mb": _status("/proc/self/status", "VmHWM") / 1024,
        "ett_pct": ledger.ett_pct,
        "steps": ledger.steps,
        "attempts": len(ledger.attempts),
        "failures": len(ledger.incidents),
        "unsaved_s": ledger.unsaved_ns / 1e9,
        "status": ledger.status,
    }


def main() -> None:
    """Ask once, and again for each line (its number of seconds later)."""
    reader, now = JobReader(JobPaths(Path(sys.argv[1]))), int(sys.argv[2])
    print(json.dumps(ask(reader, now)), flush=True)
    for line in sys.stdin:
        now += int(float(line) * 1e9)
        print(json.dumps(ask(reader, now)), flush=True)


if __name__ == "__main__":
    main()

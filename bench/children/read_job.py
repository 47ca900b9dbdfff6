"""ettrain's side of `bench/ledger.py`: `read_job.py FOLDER NOW [profile]` reads a job and accounts for it; again for each line on stdin.

A line says how many seconds later it is. Each answer is a JSON line: seconds of the read and of the accounting, bytes read, the
memory peak so far, and what came out. With `profile` there is one answer, and what cost most goes to stderr.
"""

from __future__ import annotations

import cProfile
import json
import pstats
import re
import sys
import time
from pathlib import Path
from typing import Any

from ettrain.account.ledger import account
from ettrain.jobpaths import JobPaths
from ettrain.jobreader import JobReader


def ask(reader: JobReader, now_wall_ns: int) -> dict[str, Any]:
    """Read what is new and account for the whole job."""
    bytes_before, cpu = _number("/proc/self/io", "rchar"), time.process_time()
    begin = time.perf_counter()
    history = reader.read(now_wall_ns)
    read = time.perf_counter()
    ledger = account(history).ledger
    end = time.perf_counter()
    return {
        "read_s": read - begin,
        "account_s": end - read,
        "s": end - begin,
        "cpu_s": time.process_time() - cpu,
        "read_mb": (_number("/proc/self/io", "rchar") - bytes_before) / 1e6,
        "peak_mb": _number("/proc/self/status", "VmHWM") / 1024,
        "ett_pct": ledger.ett_pct,
        "steps": ledger.steps,
        "failures": len(ledger.incidents),
        "unsaved_s": ledger.unsaved_ns / 1e9,
        "status": ledger.status,
    }


def _number(file: str, name: str) -> int:
    """A figure of this process from /proc; 0 where it is not told."""
    found = re.search(rf"^{name}:\s*(\d+)", Path(file).read_text(encoding="ascii"), re.MULTILINE)
    return int(found[1]) if found else 0


def main() -> None:
    """Ask once, and again for each line."""
    reader, now = JobReader(JobPaths(Path(sys.argv[1]))), int(sys.argv[2])
    if sys.argv[3:] == ["profile"]:
        with cProfile.Profile() as profile:
            answer = ask(reader, now)
        pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(25)
        print(json.dumps(answer), flush=True)
        return
    print(json.dumps(ask(reader, now)), flush=True)
    for line in sys.stdin:
        now += int(float(line) * 1e9)
        print(json.dumps(ask(reader, now)), flush=True)


if __name__ == "__main__":
    main()

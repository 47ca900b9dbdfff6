"""The peer's side of `bench/ledger.py`; runs in the peer's environment: `peer_calculator.py STEPS`.

Its log is a list in memory that holds one record per step, 10 s apart; the calculator is asked once, and again after one more record.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ml_goodput_measurement.src.goodput import GoodputCalculator, GoodputRecorder

JOB = "job"
STEP_S = 10


class ListLogger:
    """The log."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self.told = 0

    def write_cloud_logging_entry(self, entry: dict[str, Any]) -> None:
        """Take an entry."""
        self.entries.append(entry)

    def read_cloud_logging_entries(self, *window: Any, **named: Any) -> tuple[list[dict[str, Any]], tuple[datetime, str]]:
        """Entries that were not read before."""
        fresh, self.told = self.entries[self.told :], len(self.entries)
        return fresh, (datetime.now(UTC) - timedelta(seconds=1), str(self.told))


def main() -> None:
    """Ask twice."""
    steps = int(sys.argv[1])
    log = ListLogger()
    recorder = GoodputRecorder(JOB, "log", logging_enabled=True, cloud_logger=log)
    start = datetime.now(UTC) - timedelta(seconds=STEP_S * steps + 100)
    recorder.record_job_start_time(start)
    for step in range(steps):
        recorder.record_step_start_time(step, start + timedelta(seconds=60 + STEP_S * step))
    with tempfile.TemporaryDirectory(prefix="ett-bench-") as folder:
        calculator = GoodputCalculator(JOB, "log", cloud_logger=log, cache_dir=folder)
        first = _ask(calculator)
        recorder.record_step_start_time(steps, start + timedelta(seconds=60 + STEP_S * steps))
        print(json.dumps([first, _ask(calculator)]))


def _ask(calculator: Any) -> dict[str, float]:
    cpu, begin = time.process_time(), time.perf_counter()
    pct, _, step = calculator.get_job_goodput(include_badput_breakdown=True)
    took, cpu_s = time.perf_counter() - begin, time.process_time() - cpu
    peak = re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text(encoding="ascii"))
    return {"s": took, "cpu_s": cpu_s, "pct": pct, "steps": step + 1, "peak_mb": int(peak[1]) / 1024 if peak else 0.0}


if __name__ == "__main__":
    main()

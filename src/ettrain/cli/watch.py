"""`ett watch [JOB]`: follow a job while it runs. Redraws in place on a terminal, appends lines elsewhere, ends with the job."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

from ettrain import clock
from ettrain.account.history import JobHistory
from ettrain.account.ledger import Account, account
from ettrain.cli.report import runs_option, shown, wants_colour
from ettrain.errors import UsageError
from ettrain.jobreader import JobReader, find_job
from ettrain.report.live import live_dict, live_line, render_live
from ettrain.report.notes import report_command
from ettrain.settings import value_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("job", nargs="?", help="name of the job, or its folder (default: the newest)")
    parser.add_argument("--runs", help="folder of all jobs (default: ett-runs, or ETT_RUNS)")
    parser.add_argument("--once", action="store_true", help="look once")
    parser.add_argument("--interval", type=float, default=2.0, metavar="S", help="seconds between two looks (default 2)")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line: docs/report-json.md")
    parser.add_argument("--no-color", action="store_true", help="no colours, also not on a terminal (as NO_COLOR does)")


def run(arguments: argparse.Namespace) -> int:
    """Do it, until the job ends."""
    if not 0.1 <= arguments.interval <= 86_400:
        raise UsageError(f"--interval must lie between 0.1 and 86400 seconds, got {arguments.interval:g}")
    paths = find_job(Path(str(value_of("runs", arguments.runs))), arguments.job)
    reader = JobReader(paths)
    screen = _Screen(as_json=arguments.json, colour=wants_colour(sys.stdout, forbidden=arguments.no_color))
    while True:
        job = reader.read()
        told = account(job)
        screen.show(told, job)
        if not job.running or arguments.once:
            break
        clock.sleep_s(arguments.interval)
    if not arguments.json and not job.running:
        print(f"\nThe job has ended ({told.ledger.status}). Next: {report_command(told.ledger.job, runs_option(paths))}")
    return 0


class _Screen:
    """Where each look goes: over the one before on a terminal, below it elsewhere."""

    def __init__(self, *, as_json: bool, colour: bool) -> None:
        self._json = as_json
        self._colour = colour
        self._lines = 0

    def show(self, told: Account, job: JobHistory) -> None:
        """One look."""
        if self._json:
            text = json.dumps(live_dict(told, job), allow_nan=False) + "\n"
        elif sys.stdout.isatty():
            size = shutil.get_terminal_size()
            text = render_live(told, job, width=size.columns - 1, height=size.lines - 3, colour=self._colour)
            back = f"\x1b[{self._lines}F\x1b[J" if self._lines else ""
            self._lines = text.count("\n")
            text = back + text
        else:
            text = live_line(told, job) + "\n"
        sys.stdout.write(shown(text, sys.stdout))
        sys.stdout.flush()

"""`ett report [JOB]`: say where a job's time went; as text, JSON, a page, or a trace."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from pathlib import Path
from typing import TextIO

from ettrain.account.history import JobHistory
from ettrain.account.ledger import Account, account
from ettrain.account.shapes import shapes_of
from ettrain.errors import UsageError
from ettrain.jobpaths import JobPaths
from ettrain.jobreader import JobReader, find_job
from ettrain.report.contract import report_dict
from ettrain.report.html import render_html
from ettrain.report.palette import ASCII
from ettrain.report.perfetto import render_perfetto
from ettrain.report.recompiles import recompiles_dict
from ettrain.report.text import render_text
from ettrain.settings import value_of

PLAIN_WIDTH = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("job", nargs="?", help="name of the job, or its folder (default: the newest)")
    parser.add_argument("--runs", help="folder of all jobs (default: ett-runs, or ETT_RUNS)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON: docs/report-json.md")
    parser.add_argument("--html", metavar="FILE", help="write one self-contained page with a timeline of every rank")
    parser.add_argument("--perfetto", metavar="FILE", help="write a trace that ui.perfetto.dev opens")
    parser.add_argument("--explain-startup", action="store_true", help="show what the start consists of, stage by stage")
    parser.add_argument("--comms", action="store_true", help="show what the ranks exchanged until the first step, and what of it is avoidable")
    parser.add_argument("--compiles", action="store_true", help="show what torch.compile compiled and what came out of caches")
    parser.add_argument("--recompiles", action="store_true", help="show what torch.compile compiled again, why, and what to do about it")
    parser.add_argument("--force", action="store_true", help="overwrite files that exist")
    parser.add_argument("--no-color", action="store_true", help="no colours, also not on a terminal (as NO_COLOR does)")


def run(arguments: argparse.Namespace) -> int:
    """Do it."""
    for name in (arguments.html, arguments.perfetto):
        if name is not None:
            _check_target(Path(name), force=arguments.force)
    paths = find_job(Path(str(value_of("runs", arguments.runs))), arguments.job)
    job = JobReader(paths).read()
    told = account(job)
    runs = runs_option(paths)
    messages = sys.stderr if arguments.json else sys.stdout
    if arguments.json:
        more = {"recompiles": recompiles_dict(shapes_of(job))} if arguments.recompiles else {}
        print(json.dumps({**report_dict(told, job), **more}, indent=1, allow_nan=False))
    elif arguments.html is None and arguments.perfetto is None:
        _print_text(told, job, arguments, runs)
    if arguments.html is not None:
        _write(Path(arguments.html), render_html(told, job, runs=runs), force=arguments.force)
        print(f"wrote {arguments.html}", file=messages)
    if arguments.perfetto is not None:
        _write(Path(arguments.perfetto), render_perfetto(told, job), force=arguments.force)
        print(f"wrote {arguments.perfetto}  (open it in https://ui.perfetto.dev)", file=messages)
    return 0


def runs_option(paths: JobPaths) -> str:
    """What `--runs` must be given so that the job is found by its name; '' where nothing need be."""
    here = paths.root.absolute().parent
    return "" if here == Path(str(value_of("runs"))).absolute() else str(here)


def wants_colour(stream: TextIO, *, forbidden: bool) -> bool:
    """Whether escape sequences may be written: to a terminal that can show them, where nobody asked for none."""
    return stream.isatty() and not forbidden and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def shown(text: str, stream: TextIO) -> str:
    """The text as the stream can carry it: other glyphs where it knows no Unicode."""
    encoding = stream.encoding or "ascii"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(ASCII).encode(encoding, "replace").decode(encoding)
    return text


def _print_text(told: Account, job: JobHistory, arguments: argparse.Namespace, runs: str) -> None:
    text = render_text(
        told,
        job,
        width=shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns,
        colour=wants_colour(sys.stdout, forbidden=arguments.no_color),
        explain_startup=arguments.explain_startup,
        compiles=arguments.compiles,
        recompiles=arguments.recompiles,
        comms=arguments.comms,
        runs=runs,
    )
    sys.stdout.write(shown(text, sys.stdout))


def _check_target(path: Path, *, force: bool) -> None:
    if path.is_dir():
        raise UsageError(f"{path} is a folder. Name a file in it.")
    if path.exists() and not force:
        raise UsageError(f"{path} exists. Choose another name, or overwrite it with --force.")


def _write(path: Path, text: str, *, force: bool) -> None:
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{path} exists. Choose another name, or overwrite it with --force.") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from None

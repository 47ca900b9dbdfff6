"""`ett autotune [JOB]`: rank what autotuning searched for, and write the winners to a file to check in."""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
from pathlib import Path

from ettrain.account.tunings import searches_of, worth_keeping
from ettrain.cli.report import PLAIN_WIDTH, runs_option, shown, wants_colour
from ettrain.errors import UsageError
from ettrain.jobreader import JobReader, find_job
from ettrain.report.tuning import render_tuning, tuning_dict, write_command
from ettrain.settings import value_of
from ettrain.tuned import to_toml


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("job", nargs="?", help="name of the job, or its folder (default: the newest)")
    parser.add_argument("--runs", help="folder of all jobs (default: ett-runs, or ETT_RUNS)")
    parser.add_argument("--write", metavar="FILE", help="write the winners to FILE, to check in: ett run --autotune FILE pins them")
    parser.add_argument("--force", action="store_true", help="overwrite FILE")
    parser.add_argument("--json", action="store_true", help="print the ranking as JSON: docs/autotune.md")
    parser.add_argument("--no-color", action="store_true", help="no colours, also not on a terminal (as NO_COLOR does)")


def run(arguments: argparse.Namespace) -> int:
    """Do it."""
    paths = find_job(Path(str(value_of("runs", arguments.runs))), arguments.job)
    history = JobReader(paths).read()
    searches = searches_of(history)
    following = write_command(history.name, runs_option(paths))
    if arguments.write is not None:
        winners = worth_keeping(searches)
        if not winners:
            raise UsageError(f"job '{history.name}' has tuned nothing: there is nothing to write")
        _write(Path(arguments.write), to_toml(winners), force=arguments.force)
        following = f"ett run --autotune {shlex.quote(arguments.write)} -- {shlex.join(history.command) or '<the same command>'}"
        print(f"wrote {arguments.write}: {len(winners)} winner(s)", file=sys.stderr)
    if arguments.json:
        print(json.dumps(tuning_dict(history.name, searches), indent=1, allow_nan=False))
        return 0
    width = shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns
    text = render_tuning(
        history.name, searches, width=width, colour=wants_colour(sys.stdout, forbidden=arguments.no_color), following=following
    )
    sys.stdout.write(shown(text, sys.stdout))
    return 0


def _write(path: Path, text: str, *, force: bool) -> None:
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{path} exists. Choose another name, or overwrite it with --force.") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from None

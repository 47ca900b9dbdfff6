"""`ett import KIND PATH`: turn a foreign log into a job, on which `ett report` works as on any."""

from __future__ import annotations

import argparse
import json
import shlex
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path

from ettrain.errors import UsageError
from ettrain.fleet.goodput import import_goodput
from ettrain.fleet.importing import Imported
from ettrain.settings import value_of

KINDS = {"goodput": import_goodput}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("kind", choices=sorted(KINDS), help="goodput: flat records of ml-goodput-measurement and Orbax, one JSON object per line")
    parser.add_argument("path", help="the log")
    parser.add_argument("--job", help="name for the job (default: as the log calls it); where the log holds several, which one")
    parser.add_argument("--runs", help="folder of all jobs (default: ett-runs, or ETT_RUNS)")
    parser.add_argument("--now", metavar="EPOCH", help="look at this instant, seconds since 1970 or ISO 8601 (default: at the last record)")
    parser.add_argument("--force", action="store_true", help="overwrite a job of that name")
    parser.add_argument("--json", action="store_true", help="print what was imported as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Do it."""
    runs = Path(str(value_of("runs", arguments.runs)))
    now_ns = None if arguments.now is None else _instant(arguments.now)
    made = KINDS[arguments.kind](Path(arguments.path), runs, job=arguments.job, now_ns=now_ns, force=arguments.force)
    following = f"ett report {shlex.quote(made.paths.name)}"
    if runs.absolute() != Path(str(value_of("runs"))).absolute():
        following += f" --runs {shlex.quote(str(runs))}"
    print(_as_json(made, following) if arguments.json else _as_text(made, following))
    return 0


def _instant(text: str) -> int:
    """Epoch ns of --now."""
    try:
        seconds = Decimal(text)
    except InvalidOperation:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise UsageError(f"--now: {text!r} is neither seconds since 1970 nor an ISO 8601 time such as 2026-01-01T00:00:00Z") from None
        seconds = Decimal(str((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()))
    if not seconds.is_finite() or not 0 <= seconds < 1 << 33:
        raise UsageError(f"--now: {text!r} is no instant since 1970")
    return int(seconds * 1_000_000_000)


def _as_text(made: Imported, following: str) -> str:
    attempts = f"{made.attempts} attempt" + "s" * (made.attempts != 1)
    lines = [f"imported {made.paths.name}: {made.records} records, {attempts}, {made.steps} steps, into {made.paths.root}"]
    lines += [f"  - {note}" for note in made.notes]
    return "\n".join([*lines, "", f"next: {following}"])


def _as_json(made: Imported, following: str) -> str:
    told = {"job": made.paths.name, "folder": str(made.paths.root), "records": made.records, "attempts": made.attempts, "steps": made.steps}
    return json.dumps({"schema": 1, **told, "notes": list(made.notes), "next": following}, indent=1)

"""`ett publish ls|show|wait|retry|run`: look after publications, and be one."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from ettrain import clock
from ettrain.boost.publish import launch, progress
from ettrain.boost.publish.progress import Status, status_of
from ettrain.boost.publish.target import Place, Target, places
from ettrain.errors import JournalError, PublishFailedError, UsageError
from ettrain.journal import JournalTail
from ettrain.settings import ENV_DETACHED, value_of

_ACTIONS: Final = {
    "ls": "list publications: of a folder of models, of a job, or of all jobs",
    "show": "show one: what was asked, what became of it, its log's end",
    "wait": "wait for one, or for all of a job; ends with 75 where one failed",
    "retry": "start one again that failed or was interrupted",
    "run": "publish in this process: what detached processes, Slurm and Kubernetes execute",
}
_LOG_LINES: Final = 12
_POLL_S: Final = 0.3
_NICE: Final = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("action", choices=_ACTIONS, help="; ".join(f"{name}: {doc}" for name, doc in _ACTIONS.items()))
    parser.add_argument("what", nargs="?", help="id of a publication, its folder, a folder of models, or a job")
    parser.add_argument("--runs", help="folder of all jobs (default: ett-runs, or ETT_RUNS)")
    parser.add_argument("--timeout", type=float, default=0.0, metavar="SECONDS", help="wait: at most so long (default: for ever)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Do it."""
    runs = Path(str(value_of("runs", arguments.runs)))
    found = find(arguments.what, runs)
    if arguments.action == "ls":
        return _ls(found, arguments)
    if not found:
        raise UsageError(f"no publication {arguments.what or ''} in {runs}. Name its folder, or see: ett publish ls FOLDER")
    if arguments.action == "wait":
        return wait(found, arguments.timeout, json_wanted=arguments.json)
    if len(found) > 1:
        raise UsageError(f"{arguments.action}: which of {', '.join(place.root.name for place in found[-8:])}?")
    if arguments.action == "show":
        return _show(found[0], json_wanted=arguments.json)
    return _retry(found[0]) if arguments.action == "retry" else _run(found[0])


def find(what: str | None, runs: Path) -> list[Place]:
    """Publications by id, folder or job; all that jobs asked for where nothing is named. Oldest first."""
    if what and "/" not in what and (runs / what).is_dir():
        return of_job(runs / what)
    if what and Path(what).is_dir():
        found = places(Path(what).absolute())
        return found or of_job(Path(what))
    jobs = sorted(runs.iterdir()) if runs.is_dir() else []
    every = {place.root: place for job in jobs for place in of_job(job)}
    return [place for place in every.values() if what in (None, place.root.name)]


def of_job(job: Path, since_ns: int = 0) -> list[Place]:
    """Publications that a job asked for since an instant (wall clock), oldest first."""
    found: dict[str, tuple[int, Place]] = {}
    for path in (job / "publishes").glob("*.jsonl"):
        try:
            records = JournalTail(path).read_new()
        except JournalError:
            continue
        wall = next((int(record["wall"]) for record in records if isinstance(record.get("wall"), int)), 0)
        for record in records if wall >= since_ns else ():
            if record["k"] == "publish" and isinstance(record.get("place"), str):
                place = Place(Path(record["place"]))
                if place.request_file.is_file():
                    found.setdefault(record["place"], (wall, place))
    return [place for _, place in sorted(found.values(), key=lambda pair: (pair[0], pair[1].root.name))]


def wait(found: list[Place], timeout_s: float, *, json_wanted: bool = False) -> int:
    """Wait until nothing works on them any more.

    Raises:
        PublishFailedError: one is not published, or not in time.
    """
    until = clock.monotonic_ns() + int(timeout_s * 1e9)
    while True:
        states = {place: status_of(place) for place in found}
        if all(status.state in progress.OVER for status in states.values()) or (timeout_s and clock.monotonic_ns() >= until):
            break
        clock.sleep_s(_POLL_S)
    if json_wanted:
        print(json.dumps([_told(place, status) for place, status in states.items()], indent=1))
    else:
        for place, status in states.items():
            print(_line(place, status))
    bad = [(place, status) for place, status in states.items() if status.state not in progress.DONE]
    if bad:
        place, status = bad[0]
        raise PublishFailedError(str(place.root), status.state, status.why, str(place.log))
    return 0


def _ls(found: list[Place], arguments: argparse.Namespace) -> int:
    states = [(place, status_of(place)) for place in found]
    if arguments.json:
        print(json.dumps([_told(place, status) for place, status in states], indent=1))
        return 0
    if not states:
        where = arguments.what or f"the jobs of {value_of('runs', arguments.runs)}"
        print(f"no publication in {where}")
        return 0
    for place, status in states:
        print(_line(place, status))
    bad = [place for place, status in states if status.state in (progress.FAILED, progress.INTERRUPTED)]
    if bad:
        print(f"\nNext: ett publish retry {bad[-1].root}")
    return 0


def _line(place: Place, status: Status) -> str:
    current = "  current" if _is_current(place, status) else ""
    at = f"  {datetime.fromtimestamp(status.t_ns / 1e9, UTC):%Y-%m-%d %H:%M:%S}" if status.t_ns else ""
    lines = f"{status.state:12} {place.root.name}{at}"
    if status.state == progress.RUNNING:
        return f"{lines}  at {status.stage}"
    if status.state in progress.DONE:
        return f"{lines}  {status.version}{current}" + (f"\n             {status.why}" if status.why else "")
    if status.state in (progress.FAILED, progress.INTERRUPTED):
        why = status.why or "its process ended without a word"
        return f"{lines}  at {status.stage or 'its start'}: {why}\n             log: {place.log}"
    return lines


def _is_current(place: Place, status: Status) -> bool:
    return bool(status.version) and Target(place.root.parents[2], place.root.parents[1].name).current_version() == status.version


def _told(place: Place, status: Status) -> dict[str, Any]:
    return {
        "id": place.root.name,
        **asdict(status),
        "current": _is_current(place, status),
        "folder": str(place.root),
        "log": str(place.log),
    }


def _show(place: Place, *, json_wanted: bool) -> int:
    request, status = place.request(), status_of(place)
    target = Target(request.to, request.name)
    manifest = target.manifest(status.version) if status.version else {}
    if json_wanted:
        told = {
            **_told(place, status),
            "request": json.loads(request.to_bytes()),
            "notes": progress.notes(place),
            "manifest": manifest or None,
        }
        print(json.dumps(told, indent=1))
        return 0
    print(_line(place, status))
    rows = {"checkpoint": request.checkpoint, "model": request.model, "export": request.kind, "to": target.current, "where": request.where}
    if manifest:
        rows |= _made(manifest)
    for name, value in rows.items():
        print(f"  {name:12} {value}")
    if status.state not in progress.DONE and place.log.is_file():
        print(f"\n  the end of {place.log}:")
        for line in place.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:]:
            print(f"    {line[:300]}")
    if status.state in (progress.FAILED, progress.INTERRUPTED):
        print(f"\nNext: ett publish retry {place.root}")
    return 0


def _made(manifest: dict[str, Any]) -> dict[str, object]:
    """What a published version's manifest tells a person."""
    checked = manifest.get("verification", {})
    rows: dict[str, object] = {
        "step": manifest["checkpoint"].get("step"),
        "files": ", ".join(f"{name} {one['bytes']:,} bytes" for name, one in manifest["files"].items()),
    }
    if checked.get("exported"):
        rows["verified"] = (
            f"largest difference {checked['worst']:.3g} of outputs up to {checked['largest_output']:.3g}, against {checked['against']}"
        )
    else:
        rows["verified"] = f"the model before its export only: {checked.get('why', '')}"
    rows["took"] = (
        ", ".join(f"{name} {seconds:.1f} s" for name, seconds in manifest["seconds"].items()) + f"; CPU {manifest['cpu_s']:.1f} s"
    )
    rows["memory"] = f"{manifest['peak_bytes'] / (1 << 20):.0f} MiB at its largest"
    if manifest["metrics"]:
        rows["metrics"] = ", ".join(f"{name} {'-' if value is None else format(value, 'g')}" for name, value in manifest["metrics"].items())
    return rows


def _retry(place: Place) -> int:
    status = status_of(place)
    if status.state in progress.DONE or place.is_busy:
        print(_line(place, status))
        return 0
    print(f"{place.root.name}: {launch.start(place, place.request())}")
    print(f"\nNext: ett publish wait {place.root}")
    return 0


def _run(place: Place) -> int:
    if os.environ.get(ENV_DETACHED):
        os.nice(_NICE)  # on the trainer's host: the end of that job, and the next one, go first
    from ettrain.boost.publish import work

    status = work.run(place)
    sys.stdout.flush()
    if status.state in progress.OVER and status.state not in progress.DONE:
        raise PublishFailedError(str(place.root), status.state, status.why, str(place.log))
    return 0

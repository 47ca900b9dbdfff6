"""What every import of a foreign log does: write a job's folder, whole or not at all, with the journals' own writer.

An imported job has one host whose monotonic clock is the epoch: times in its journals are epoch ns.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ettrain import events as e
from ettrain.errors import UsageError
from ettrain.events import Record
from ettrain.jobpaths import JOB_NAME, JobPaths
from ettrain.journal import JournalWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What an import made."""

    paths: JobPaths
    records: int
    """Records of the source that were understood."""
    attempts: int
    steps: int
    notes: tuple[str, ...]


def job_name(wanted: str | None, found: str, path: Path) -> str:
    """Name of the job to make: as wanted, else as the log calls it, else after the file.

    Raises:
        UsageError: the name wanted is none that a job can have.
    """
    if wanted is not None:
        if not JOB_NAME.fullmatch(wanted):
            raise UsageError(f"{wanted!r} is no job name: letters, digits, '.', '_' and '-', at most 100, the first a letter or digit")
        return wanted
    for name in (found, path.name.split(".")[0]):
        clean = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:100]
        if JOB_NAME.fullmatch(clean):
            return clean
    return "imported"


@contextmanager
def new_job(runs: Path, name: str, *, force: bool) -> Iterator[JobPaths]:
    """A folder to fill; it becomes RUNS/<name> when the block ends well, and is gone when it does not.

    Raises:
        UsageError: there is such a job and `force` was not given, or the folder cannot be made.
    """
    target = runs / name
    if target.exists() and not force:
        raise UsageError(f"there is a job '{name}' in {runs} already: give another name with --job, or --force to overwrite it")
    if target.exists() and not ((target / "supervisor.jsonl").exists() or (target / "attempts").is_dir()):
        raise UsageError(f"{target} is no job's folder: it is not overwritten")
    paths = JobPaths(runs / f".importing-{os.getpid()}" / name)
    try:
        paths.attempts.mkdir(parents=True)
    except OSError as error:
        raise UsageError(f"cannot make {paths.root}: {error.strerror}") from error
    try:
        yield paths
        if target.exists():
            shutil.rmtree(target)
        paths.root.rename(target)
    finally:
        shutil.rmtree(paths.root.parent, ignore_errors=True)


def head(role: str, t: int, *, job: str, pid: int, **more: Any) -> Record:
    """First record of a journal of an imported job."""
    return {"k": "head", "schema": e.SCHEMA, "t": t, "wall": t, "boot": f"imported-{job}", "host": "imported", "pid": pid, "role": role, **more}


def write_journal(path: Path, records: list[Record]) -> None:
    """Write a whole journal."""
    path.parent.mkdir(exist_ok=True)
    writer = JournalWriter(path, exclusive=True)
    try:
        writer.write_all(records)
    finally:
        writer.close()


def write_job_file(paths: JobPaths, asked: Record) -> None:
    """Write job.json."""
    paths.job_file.write_text(json.dumps({"job": paths.name, **asked}, indent=1) + "\n", encoding="utf-8")

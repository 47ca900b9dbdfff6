"""Imports the records of ml-goodput-measurement and Orbax as a job's folder, on which `ett report` works as on any.

Source of the format: github.com/AI-Hypercomputer/ml-goodput-measurement, 0.2.3 (records), Orbax's step statistics (saves, restores).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ettrain.account.ledger import Ledger, account
from ettrain.events import Record
from ettrain.fleet.goodputjournal import Journal, fill, journal_of, step_offset
from ettrain.fleet.goodputlog import Event, GoodputLog, drop_other_writers, drop_repeats, read_goodput
from ettrain.fleet.goodputnotes import Cleaned, notes_of
from ettrain.fleet.goodputruns import Run, runs_of, usual_step
from ettrain.fleet.importing import Imported, head, job_name, new_job, write_job_file, write_journal
from ettrain.jobpaths import JobPaths, attempt_name, rank_stem
from ettrain.jobreader import JobReader

_SUPPORTS: Final = ("ett", "tts", "ttr", "ttc", "failures", "unsaved", "time_to_shut_down", "checkpoint_blocking", "incidents")
_CAUSES: Final = {
    "": ("unknown", "the records do not say why it ended"),
    "elastic": ("node_failure", "an elastic wait began: hardware was lost"),
    "scale up": ("stopped", "an elastic wait began: more hardware became available"),
    "preempted": ("preemption", "Orbax saved because of a preemption"),
    "stopped": ("stopped", "job_end was recorded, and the job was taken up at the next step later"),
}
"""Cause of a run's end -> (class, words)."""


def import_goodput(path: Path, runs: Path, *, job: str | None = None, now_ns: int | None = None, force: bool = False) -> Imported:
    """Make a job of a file of records.

    Args:
        path: one JSON object per line.
        runs: folder of all jobs.
        job: name for the new job, and which of several in the file; None: as the records call it.
        now_ns: the instant at which to look (epoch ns); None: at the last record.
        force: overwrite a job of that name.
    Raises:
        ImportFormatError: the file holds no such records.
        UsageError: the job is there already, or cannot be written.
    """
    log = read_goodput(path, job)
    now_ns = None if now_ns is None else (now_ns + 500) // 1000 * 1000
    name = job_name(job, log.job, path)
    events, cleaned = _clean(log, now_ns)
    told = runs_of(events, now_ns)
    journals = [journal_of(run, usual_step([run]) or usual_step(told)) for run in told]
    fill(journals, step_offset(told), name)
    with new_job(runs, name, force=force) as paths:
        ledger, notes = _write(paths, log, cleaned, journals, events)
    return Imported(paths=JobPaths(runs / name), records=len(events), attempts=len(told), steps=ledger.steps, notes=tuple(notes))


def _clean(log: GoodputLog, now: int | None) -> tuple[list[Event], Cleaned]:
    events = log.events if now is None else [event for event in log.events if event.end <= now]
    later = len(log.events) - len(events)
    if not events:
        events, later = log.events[:1], len(log.events) - 1
    events, repeats = drop_repeats(events)
    events, writers = drop_other_writers(events)
    return events, Cleaned(repeats=repeats, writers=writers, later=later)


def _write(paths: JobPaths, log: GoodputLog, cleaned: Cleaned, journals: list[Journal], events: list[Event]) -> tuple[Ledger, list[str]]:
    """Write the files; the notes last, as they tell what ETT% would be otherwise."""
    kinds = {event.kind for event in events}
    supports = [figure for figure in _SUPPORTS if figure != "checkpoint_blocking" or "save" in kinds]
    last = journals[-1].run
    if last.ended != "recorded":
        supports.remove("time_to_shut_down")
    asked: Record = {"command": [], "supports": supports, "source": "ml-goodput-measurement", "source_job": log.job}
    if last.ended == "now":
        asked["live_at"] = last.end
    write_job_file(paths, asked)
    start = journals[0].run.start
    records: list[Record] = [head("supervisor", start, job=paths.name, pid=0), {"k": "job", "t": start, **asked}]
    for number, journal in enumerate(journals):
        folder = paths.attempt(attempt_name(number))
        folder.mkdir()
        if not _waits(journal.run):
            write_journal(folder / f"{rank_stem(0, number + 1)}.jsonl", journal.records)
        records.extend(_told(journal.run, number, final=number + 1 == len(journals)))
    write_journal(paths.supervisor_journal, records)
    ledger = account(JobReader(paths).read(last.end)).ledger
    notes = notes_of(log, cleaned, journals, ledger)
    more: list[Record] = [{"k": "note", "t": last.end, "text": text} for text in notes]
    paths.supervisor_journal.unlink()
    write_journal(paths.supervisor_journal, [*records, *more, {"k": "bye", "t": last.end}])
    return ledger, notes


def _waits(run: Run) -> bool:
    """Whether it is an elastic wait that has not ended: no process runs yet."""
    return run.kind == "elastic" and run.ended == "now" and not run.steps and not run.known and run.open_stage is None


def _told(run: Run, number: int, *, final: bool) -> list[Record]:
    """What a supervisor would have written about a run."""
    name = attempt_name(number)
    begin: Record = {"k": "begin", "t": run.start, "attempt": name, "launch": number}
    if run.ended == "now":
        return [begin]
    end: Record = {"k": "end", "t": run.end, "attempt": name, "code": 0 if final else None, "sent": [], "oom": 0}
    gone: Record = {"k": "gone", "t": run.end, "pid": number + 1, "attempt": name}
    if final:
        gone["code"] = 0
    else:
        end["class"], end["text"] = _CAUSES[run.cause]
    return [begin, gone, end]

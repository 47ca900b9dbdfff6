"""`ett report JOB --perfetto`: the job as Chrome trace events, which ui.perfetto.dev opens. Times in µs since the job's start.

Processes and threads of the trace:

    job            state (the wall view), attempts, interruptions
    attempt N      per rank: its tiles; the recorded spans, nested as they were; lanes for what ran beside the main thread;
                   a counter of global steps

Source: Trace Event Format, https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Final

from ettrain._version import VERSION
from ettrain.account.history import AttemptHistory, JobHistory, RankHistory
from ettrain.account.ledger import Account
from ettrain.account.rollback import StepMap
from ettrain.lifecycle import component_of
from ettrain.report.metrics import short
from ettrain.report.palette import group_of
from ettrain.report.tracks import Piece, job_pieces, nested_lanes, rank_pieces, thin
from ettrain.report.units import NS, clean, instant

EVENTS: Final = 400_000
"""About how many events a trace may have before short tiles are merged and short stages left out."""
JOB_PID: Final = 1

Event = dict[str, object]
"""One trace event, or its arguments."""


def render_perfetto(account: Account, job: JobHistory) -> str:
    """The trace as JSON text, one event a line."""
    shortest = _shortest(account, job)
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in trace_events(account, job, shortest_ns=shortest))
    other = {"job": clean(account.ledger.job), "start": instant(account.ledger.start), "ettrain": VERSION}
    if shortest:
        other["display"] = f"below {shortest / NS:.6g} s tiles are merged with their neighbours and recorded spans left out"
    return f'{{"displayTimeUnit":"ms","otherData":{json.dumps(other)},"traceEvents":[\n{lines}\n]}}\n'


def trace_events(account: Account, job: JobHistory, *, shortest_ns: int = 0) -> Iterator[Event]:
    """All events, tracks one after the other.

    Args:
        account: what the accounting says.
        job: the history it was made from.
        shortest_ns: tiles shorter than this are merged, recorded spans left out, for display only; 0 = none.
    """
    numbers = count(JOB_PID + len(job.attempts) + 1)
    yield from _job_events(account, numbers)
    for number, attempt in enumerate(job.attempts):
        process = _Process(pid=JOB_PID + 1 + number, origin=account.ledger.start, numbers=numbers)
        yield from process.named(f"attempt {number} ({clean(account.ledger.attempts[number].exit)})")
        told = {rank.rank: rank for rank in attempt.ranks}
        for tiles in account.tiles[number]:
            pieces: Iterable[Piece] = rank_pieces(account, number, tiles)
            if shortest_ns:
                pieces = thin(pieces, shortest_ns).pieces
            yield from _tile_events(pieces, process.thread(f"rank {tiles.rank}"))
            rank = told.get(tiles.rank)
            if rank is not None:
                yield from _recorded_events(rank, process, shortest_ns)
                yield from _step_events(rank, account.lineage.maps[number], process)
        yield from _exception_events(attempt, process)


def _shortest(account: Account, job: JobHistory) -> int:
    """Below which length tiles are merged and recorded spans left out: 0 unless there are too many."""
    amount = sum(len(tiles.codes) for ranks in account.tiles for tiles in ranks)
    amount += sum(len(rank.spans) + len(rank.background) for attempt in job.attempts for rank in attempt.ranks)
    busy_ns = sum((frame.end - frame.start) * len(ranks) for frame, ranks in zip(account.frames, account.tiles, strict=True))
    return 2 * busy_ns // EVENTS if amount > EVENTS else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Thread:
    """One track; times in ns on the job's clock."""

    pid: int
    tid: int
    origin: int
    name: str

    def named(self) -> Iterator[Event]:
        """What gives the track its name and its place."""
        yield _meta("thread_name", self.pid, self.tid, name=self.name)
        yield _meta("thread_sort_index", self.pid, self.tid, sort_index=self.tid)

    def span(self, name: str, kind: str, start: int, end: int, told: Event) -> Event:
        """A stretch of time."""
        return {"ph": "X", **self._at(name, start), "cat": kind, "dur": _us(end - start), "args": told}

    def instant(self, name: str, kind: str, t: int, told: Event) -> Event:
        """An instant."""
        return {"ph": "i", "s": "t", **self._at(name, t), "cat": kind, "args": told}

    def counter(self, t: int, value: int) -> Event:
        """A value that holds from an instant on."""
        return {"ph": "C", **self._at(self.name, t), "args": {"step": value}}

    def _at(self, name: str, t: int) -> Event:
        return {"name": name, "pid": self.pid, "tid": self.tid, "ts": _us(t - self.origin)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Process:
    """A group of tracks."""

    pid: int
    origin: int
    numbers: Iterator[int]
    """Thread numbers: no two threads of a trace share one."""

    def named(self, name: str) -> Iterator[Event]:
        """What gives the group its name and its place."""
        yield _meta("process_name", self.pid, self.pid, name=name)
        yield _meta("process_sort_index", self.pid, self.pid, sort_index=self.pid)

    def thread(self, name: str) -> _Thread:
        """The group's next track."""
        return _Thread(pid=self.pid, tid=next(self.numbers), origin=self.origin, name=name)


# ---- the job


def _job_events(account: Account, numbers: Iterator[int]) -> Iterator[Event]:
    ledger = account.ledger
    process = _Process(pid=JOB_PID, origin=ledger.start, numbers=numbers)
    yield from process.named(f"job {clean(ledger.job)}")
    yield from _tile_events(job_pieces(account), process.thread("state"))
    attempts = process.thread("attempts")
    yield from attempts.named()
    for row in ledger.attempts:
        arguments: Event = {"exit": clean(row.exit), "ranks": row.ranks, "first_step": row.first_step, "last_step": row.last_step}
        yield attempts.span(f"attempt {row.number}", "attempt", row.start, row.end, arguments)
    incidents = process.thread("interruptions")
    yield from incidents.named()
    for incident in ledger.incidents:
        told: Event = {
            "kind": incident.diagnosis.kind,
            "component": clean(incident.diagnosis.component),
            "rank": incident.diagnosis.rank,
            "cause": clean(incident.diagnosis.text),
            "time_to_recover_s": incident.time_to_recover_ns / NS,
            "unsaved_s": incident.unsaved_ns / NS,
        }
        yield incidents.instant(clean(incident.diagnosis.cls), "interruption", incident.at, told)


# ---- one rank


def _tile_events(pieces: Iterable[Piece], thread: _Thread) -> Iterator[Event]:
    yield from thread.named()
    for piece in pieces:
        told: Event = {"leaf": clean(piece.path), "component": component_of(piece.path)}
        if piece.part:
            told["part"] = clean(piece.part)
        event = thread.span(short(piece.path), "leaf", piece.start, piece.end, told)
        event["cname"] = group_of(piece.path).trace
        yield event


def _recorded_events(rank: RankHistory, process: _Process, shortest_ns: int) -> Iterator[Event]:
    """What the recorder wrote, before any of it was billed: stages of the main thread, then what ran beside it."""
    for name, spans in (("stages", rank.spans), ("background", rank.background)):
        kept = (span for span in spans if span.start >= process.origin and span.end - span.start >= shortest_ns)
        for lane, inside in enumerate(nested_lanes(kept)):
            thread = process.thread(f"rank {rank.rank} {name}" + (f" {lane + 1}" if lane else ""))
            yield from thread.named()
            for span in inside:
                told: Event = {"component": component_of(span.label.stage), "by": "user" if span.label.user else "found"}
                if span.label.part:
                    told["part"] = clean(span.label.part)
                yield thread.span(clean(span.label.stage), "stage", span.start, span.end, told)


def _step_events(rank: RankHistory, steps: StepMap, process: _Process) -> Iterator[Event]:
    """Global steps over time."""
    thread = process.thread(f"steps of rank {rank.rank}")
    for progress in rank.progress:
        if progress.t >= process.origin:
            yield thread.counter(progress.t, steps.at(progress.step))


def _exception_events(attempt: AttemptHistory, process: _Process) -> Iterator[Event]:
    raised = [(rank.rank, rank.error) for rank in attempt.ranks if rank.error is not None]
    thread = process.thread("exceptions")
    if raised:
        yield from thread.named()
    for number, error in raised:
        yield thread.instant(clean(error.type), "exception", error.t, {"rank": number, "message": clean(error.message)[:2000]})


def _meta(kind: str, pid: int, tid: int, **told: object) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": told}


def _us(ns: int) -> float | int:
    """Microseconds; a whole number where it is one, so that the trace stays small and exact."""
    return ns // 1000 if ns % 1000 == 0 else ns / 1000

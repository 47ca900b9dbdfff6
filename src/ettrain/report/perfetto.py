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
from itertools import count
from typing import Final

from ettrain._version import VERSION
from ettrain.account.history import AttemptHistory, JobHistory, RankHistory, Span
from ettrain.account.ledger import Account
from ettrain.account.rollback import StepMap
from ettrain.account.timeline import Tiles
from ettrain.lifecycle import component_of
from ettrain.report.metrics import short
from ettrain.report.palette import group_of
from ettrain.report.tracks import Piece, job_pieces, nested_lanes, rank_pieces, thin
from ettrain.report.units import NS, clean, instant

EVENTS: Final = 400_000
"""About how many events a trace may have before short tiles are merged and short stages left out."""
JOB_PID: Final = 1

Event = dict[str, object]
"""One trace event."""


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
    origin = account.ledger.start
    threads = count(JOB_PID + len(job.attempts) + 1)
    yield from _job_events(account, threads)
    for number, attempt in enumerate(job.attempts):
        pid = JOB_PID + 1 + number
        yield _meta("process_name", pid, pid, name=f"attempt {number} ({clean(account.ledger.attempts[number].exit)})")
        yield _meta("process_sort_index", pid, pid, sort_index=pid)
        told = {rank.rank: rank for rank in attempt.ranks}
        for tiles in account.tiles[number]:
            yield from _tile_events(account, number, tiles, pid, next(threads), shortest_ns)
            rank = told.get(tiles.rank)
            if rank is not None:
                yield from _recorded_events(rank, pid, threads, origin, shortest_ns)
                yield from _step_events(rank, account.lineage.maps[number], pid, next(threads), origin)
        yield from _exception_events(attempt, pid, next(threads), origin)


def _shortest(account: Account, job: JobHistory) -> int:
    """Below which length tiles are merged and recorded spans left out: 0 unless there are too many."""
    amount = sum(len(tiles.codes) for ranks in account.tiles for tiles in ranks)
    amount += sum(len(rank.spans) + len(rank.background) for attempt in job.attempts for rank in attempt.ranks)
    busy_ns = sum((frame.end - frame.start) * len(ranks) for frame, ranks in zip(account.frames, account.tiles, strict=True))
    return 2 * busy_ns // EVENTS if amount > EVENTS else 0


# ---- the job


def _job_events(account: Account, threads: Iterator[int]) -> Iterator[Event]:
    ledger = account.ledger
    yield _meta("process_name", JOB_PID, JOB_PID, name=f"job {clean(ledger.job)}")
    yield _meta("process_sort_index", JOB_PID, JOB_PID, sort_index=0)
    tid = next(threads)
    yield _meta("thread_name", JOB_PID, tid, name="state")
    yield _meta("thread_sort_index", JOB_PID, tid, sort_index=0)
    yield from (_piece_event(piece, JOB_PID, tid, ledger.start) for piece in job_pieces(account))
    tid = next(threads)
    yield _meta("thread_name", JOB_PID, tid, name="attempts")
    yield _meta("thread_sort_index", JOB_PID, tid, sort_index=1)
    for row in ledger.attempts:
        arguments = {"exit": clean(row.exit), "ranks": row.ranks, "first_step": row.first_step, "last_step": row.last_step}
        yield _complete(f"attempt {row.number}", "attempt", row.start, row.end, JOB_PID, tid, ledger.start, arguments)
    tid = next(threads)
    yield _meta("thread_name", JOB_PID, tid, name="interruptions")
    yield _meta("thread_sort_index", JOB_PID, tid, sort_index=2)
    for incident in ledger.incidents:
        told: dict[str, object] = {
            "kind": incident.diagnosis.kind,
            "component": clean(incident.diagnosis.component),
            "rank": incident.diagnosis.rank,
            "cause": clean(incident.diagnosis.text),
            "time_to_recover_s": incident.time_to_recover_ns / NS,
            "unsaved_s": incident.unsaved_ns / NS,
        }
        yield _instant(clean(incident.diagnosis.cls), "interruption", incident.at, JOB_PID, tid, ledger.start, told)


# ---- one rank


def _tile_events(account: Account, number: int, tiles: Tiles, pid: int, tid: int, shortest_ns: int) -> Iterator[Event]:
    yield _meta("thread_name", pid, tid, name=f"rank {tiles.rank}")
    yield _meta("thread_sort_index", pid, tid, sort_index=tid)
    pieces: Iterable[Piece] = rank_pieces(account, number, tiles)
    if shortest_ns:
        pieces = thin(pieces, shortest_ns).pieces
    yield from (_piece_event(piece, pid, tid, account.ledger.start) for piece in pieces)


def _recorded_events(rank: RankHistory, pid: int, threads: Iterator[int], origin: int, shortest_ns: int) -> Iterator[Event]:
    """What the recorder wrote, before any of it was billed: stages of the main thread, then what ran beside it."""
    for name, spans in (("stages", rank.spans), ("background", rank.background)):
        for lane, inside in enumerate(nested_lanes(span for span in spans if span.start >= origin and span.end - span.start >= shortest_ns)):
            tid = next(threads)
            yield _meta("thread_name", pid, tid, name=f"rank {rank.rank} {name}" + (f" {lane + 1}" if lane else ""))
            yield _meta("thread_sort_index", pid, tid, sort_index=tid)
            yield from (_span_event(span, pid, tid, origin) for span in inside)


def _span_event(span: Span, pid: int, tid: int, origin: int) -> Event:
    stage = clean(span.label.stage)
    told: dict[str, object] = {"component": component_of(span.label.stage), "by": "user" if span.label.user else "found"}
    if span.label.part:
        told["part"] = clean(span.label.part)
    return _complete(stage, "stage", span.start, span.end, pid, tid, origin, told)


def _step_events(rank: RankHistory, steps: StepMap, pid: int, tid: int, origin: int) -> Iterator[Event]:
    """Global steps over time."""
    for progress in rank.progress:
        if progress.t >= origin:
            name = f"steps of rank {rank.rank}"
            yield {"ph": "C", "name": name, "pid": pid, "tid": tid, "ts": _us(progress.t - origin), "args": {"step": steps.at(progress.step)}}


def _exception_events(attempt: AttemptHistory, pid: int, tid: int, origin: int) -> Iterator[Event]:
    raised = [(rank.rank, rank.error) for rank in attempt.ranks if rank.error is not None]
    if raised:
        yield _meta("thread_name", pid, tid, name="exceptions")
        yield _meta("thread_sort_index", pid, tid, sort_index=tid)
    for number, error in raised:
        told: dict[str, object] = {"rank": number, "message": clean(error.message)[:2000]}
        yield _instant(clean(error.type), "exception", error.t, pid, tid, origin, told)


# ---- events


def _piece_event(piece: Piece, pid: int, tid: int, origin: int) -> Event:
    told: dict[str, object] = {"leaf": clean(piece.path), "component": component_of(piece.path)}
    if piece.part:
        told["part"] = clean(piece.part)
    event = _complete(short(piece.path), "leaf", piece.start, piece.end, pid, tid, origin, told)
    event["cname"] = group_of(piece.path).trace
    return event


def _complete(name: str, kind: str, start: int, end: int, pid: int, tid: int, origin: int, told: dict[str, object]) -> Event:
    return {"ph": "X", "name": name, "cat": kind, "pid": pid, "tid": tid, "ts": _us(start - origin), "dur": _us(end - start), "args": told}


def _instant(name: str, kind: str, t: int, pid: int, tid: int, origin: int, told: dict[str, object]) -> Event:
    return {"ph": "i", "s": "t", "name": name, "cat": kind, "pid": pid, "tid": tid, "ts": _us(t - origin), "args": told}


def _meta(kind: str, pid: int, tid: int, **told: object) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": told}


def _us(ns: int) -> float | int:
    """Microseconds; a whole number where it is one, so that the trace stays small and exact."""
    return ns // 1000 if ns % 1000 == 0 else ns / 1000

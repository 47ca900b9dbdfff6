"""Reads the flat records of ml-goodput-measurement and of Orbax: one JSON object per line, one instant each. No meaning yet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

from ettrain.errors import ImportFormatError

MAX_LINE: Final = 1 << 20
_LATEST_S: Final = 1 << 33
"""Instants up to the year 2242 are believed."""
_SECOND: Final = 1_000_000_000
_JSON: Final = json.JSONDecoder(parse_float=Decimal)

POINTS: Final = {
    "job_start_time": "job_start",
    "job_end_time": "job_end",
    "tpu_init_start_time": "init_start",
    "tpu_init_end_time": "init_end",
    "training_prep_start_time": "prep_start",
    "training_prep_end_time": "prep_end",
    "data_loading_start_time": "data_start",
    "data_loading_end_time": "data_end",
    "custom_badput_event_start_time": "custom_start",
    "custom_badput_event_end_time": "custom_end",
    "elastic_wait_start_time": "wait_start",
    "elastic_wait_end_time": "wait_end",
    "elastic_reinit_start_time": "reinit_start",
    "elastic_reinit_end_time": "reinit_end",
    "elastic_slice_counts_timestamp": "slices",
}
"""Key that holds the instant -> kind of event."""
_ORBAX: Final = {
    "save": ("checkpoint_manager_blocking", "checkpointer_blocking"),
    "restore": ("checkpoint_manager", "checkpointer"),
    "emergency_restore": ("checkpoint_manager", "checkpointer"),
}


@dataclass(frozen=True, slots=True)
class Event:
    """One record."""

    t: int
    """Epoch ns."""
    kind: str
    end: int
    """Epoch ns; as `t` but for a save or restore."""
    step: int | None = None
    label: str = ""
    """Type of a custom or elastic event; 'preempted' where Orbax says that the save was for that."""

    @property
    def key(self) -> tuple[str, int | None, str]:
        """What two records of the same thing share."""
        return self.kind, self.step, self.label


@dataclass(slots=True)
class GoodputLog:
    """All records of one job, in order of time."""

    job: str
    events: list[Event]
    ignored: int = 0
    """Records of other kinds."""
    torn: bool = False
    """The last line was cut off."""


def read_goodput(path: Path, wanted: str | None = None) -> GoodputLog:
    """Read a file of records.

    Args:
        wanted: which job's records, where the file holds several.
    Raises:
        ImportFormatError: no file of such records; with the line where that shows.
    """
    jobs: dict[str, list[Event]] = {}
    log = GoodputLog("", [])
    try:
        with path.open("rb") as file:
            for number, line in _lines(path, file):
                record = _decode(path, number, line)
                if record is None:
                    log.torn = True
                    continue
                event = _event(path, number, record)
                if event is None:
                    log.ignored += 1
                else:
                    jobs.setdefault(str(record.get("job_name") or ""), []).append(event)
    except OSError as error:
        raise ImportFormatError(str(path), None, f"cannot be read ({error.strerror})") from error
    if not jobs:
        raise ImportFormatError(str(path), None, "holds no record of ml-goodput-measurement (job_start_time, step_start_time, ...)")
    log.job, log.events = _one_job(path, jobs, wanted)
    log.events.sort(key=lambda event: event.t)
    return log


def _one_job(path: Path, jobs: dict[str, list[Event]], wanted: str | None) -> tuple[str, list[Event]]:
    """The job asked for; records without a name (Orbax may write none) belong to the only job there is."""
    nameless = jobs.pop("", [])
    if len(jobs) <= 1:
        name, events = next(iter(jobs.items()), ("", []))
        return name, [*events, *nameless]
    if wanted in jobs:
        return wanted, jobs[wanted]
    raise ImportFormatError(str(path), None, f"holds several jobs ({', '.join(sorted(jobs)[:8])}): name one of them with --job")


def _lines(path: Path, file: Any) -> Iterator[tuple[int, bytes]]:
    number = 0
    while line := file.readline(MAX_LINE + 1):
        number += 1
        if len(line) > MAX_LINE:
            raise ImportFormatError(str(path), number, f"is longer than {MAX_LINE} bytes: no line of records")
        if line.strip():
            yield number, line


def _decode(path: Path, number: int, line: bytes) -> dict[str, Any] | None:
    """The record of a line; None where the last line of the file is cut off."""
    try:
        record = _JSON.decode(line.decode())
    except (ValueError, RecursionError):
        if number > 1 and not line.endswith(b"\n") and line.lstrip().startswith(b"{"):
            return None
        raise ImportFormatError(str(path), number, "is not JSON: records are one JSON object per line") from None
    if isinstance(record, dict) and isinstance(record.get("jsonPayload"), dict):
        record = record["jsonPayload"]
    if not isinstance(record, dict):
        raise ImportFormatError(str(path), number, "is no JSON object: records are one JSON object per line")
    return record


def _event(path: Path, number: int, record: dict[str, Any]) -> Event | None:
    if record.get("step_start_time") is not None:
        t = _instant(path, number, record["step_start_time"])
        return Event(t, "step", t, _step(path, number, record.get("step_count")))
    kind = record.get("event_type")
    if isinstance(kind, str) and kind in _ORBAX:
        return _orbax(path, number, record, kind)
    for key, value in record.items():
        if key in POINTS and value is not None:
            t = _instant(path, number, value)
            label = record.get("custom_badput_event_type") or record.get("elastic_wait_event_type") or ""
            return Event(t, POINTS[key], t, None, str(label)[:60])
    return None


def _orbax(path: Path, number: int, record: dict[str, Any], kind: str) -> Event | None:
    """A save's blocking part, or a restore."""
    for prefix in _ORBAX[kind]:
        start, took = record.get(f"{prefix}_start_time"), record.get(f"{prefix}_duration_secs")
        if start is not None and took is not None:
            t = _instant(path, number, start)
            step = _saved_step(record.get("step"))
            label = "preempted" if kind == "save" and record.get("reached_preemption") is True else ""
            end = t + _instant(path, number, took)
            return Event(t, "save" if kind == "save" else "restore", end, step, label)
    return None


def _instant(path: Path, number: int, value: Any) -> int:
    """Seconds as ns, to the microsecond: a double holds no more of an instant since 1970."""
    try:
        seconds = Decimal(value) if not isinstance(value, bool) else Decimal("NaN")
    except (InvalidOperation, TypeError, ValueError):
        seconds = Decimal("NaN")
    if not seconds.is_finite() or not 0 <= seconds < _LATEST_S:
        raise ImportFormatError(str(path), number, f"holds {str(value)[:40]!r} where a time in seconds is needed")
    return int((seconds * 1_000_000).to_integral_value()) * 1000


def _saved_step(value: Any) -> int | None:
    """Step of a checkpoint; None where Orbax does not know it."""
    try:
        step = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return step if 0 <= step < 1 << 53 and not isinstance(value, bool) else None


def _step(path: Path, number: int, value: Any) -> int:
    try:
        step = int(value)
    except (TypeError, ValueError, OverflowError):
        step = -1
    if isinstance(value, bool) or not 0 <= step < 1 << 53 or step != value:
        raise ImportFormatError(str(path), number, f"holds {str(value)[:40]!r} where a step number is needed")
    return step


def drop_repeats(events: list[Event]) -> tuple[list[Event], int]:
    """The events without exact repetitions (the same record at the same instant), and how many there were."""
    kept = list({(event.t, event.key): event for event in events}.values())
    return kept, len(events) - len(kept)


def drop_other_writers(events: list[Event]) -> tuple[list[Event], list[int]]:
    """Where several processes recorded the same job, the events of the first; and how far behind each other one was, ns.

    Two writers show as steps that go back or stand still again and again without any start in between, each step recorded twice
    at a steady distance. A roll-back goes back once, and a crash loop starts each time.
    """
    behind: list[int] = []
    while True:
        distance, tolerance = _second_writer(events)
        if distance is None:
            return events, behind
        behind.append(distance)
        events = _first_writer(events, distance, tolerance)


def _second_writer(events: list[Event]) -> tuple[int | None, int]:
    """(distance, tolerance) of the events of a second writer; (None, 0) where there is none."""
    steps = [event for event in events if event.kind in ("step", "job_start")]
    stands = sum(b.kind == a.kind == "step" and (b.step or 0) <= (a.step or 0) for a, b in pairwise(steps))
    times: dict[int, list[int]] = {}
    for event in steps:
        if event.kind == "step" and event.step is not None:
            times.setdefault(event.step, []).append(event.t)
    apart = [pair[1] - pair[0] for pair in times.values() if len(pair) > 1]
    if stands < max(3, len(times) // 4) or len(apart) < len(times) // 2:
        return None, 0
    distance = int(median(apart))
    firsts = [pair[0] for _, pair in sorted(times.items())]
    usual = int(median([b - a for a, b in pairwise(firsts) if b > a] or [_SECOND]))
    jitter = int(median(abs(ns - distance) for ns in apart))
    return distance, min(usual // 3, 8 * jitter + _SECOND // 100)


def _first_writer(events: list[Event], distance: int, tolerance: int) -> list[Event]:
    """Drop each event that follows another of the same kind at about that distance, each being answered once."""
    unanswered: dict[tuple[str, int | None, str], list[int]] = {}
    kept: list[Event] = []
    for event in events:
        waiting = unanswered.setdefault(event.key, [])
        waiting[:] = [t for t in waiting if event.t - t <= distance + tolerance]
        answered = next((t for t in waiting if abs(event.t - t - distance) <= tolerance), None)
        if answered is not None:
            waiting.remove(answered)
        else:
            waiting.append(event.t)
            kept.append(event)
    return kept

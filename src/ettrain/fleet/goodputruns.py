"""What goodput records mean: which attempts there were, which steps they trained, and what is known of their ends.

The records hold where things began, never where a step ended or when a process died. What is inferred is inferred here, by rules
that stand in docs/accounting.md, and each run says what about it is known and what is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Final

from ettrain.fleet.goodputlog import Event

_SECOND: Final = 1_000_000_000
STALL_FACTOR: Final = 10
LOAD: Final = "get_first_batch_data"
_STAGES: Final = {"init": "device_init", "prep": "pre_train", "data": LOAD, "reinit": "process_group_init"}
"""What is recorded by a start and an end -> stage."""
_OPENS_AGAIN: Final = ("init_start", "prep_start", "wait_start", "reinit_start")


@dataclass(frozen=True, slots=True)
class Known:
    """An interval that the records name."""

    start: int
    end: int
    stage: str
    user: bool = False
    step: int | None = None
    """Of a save or a restore."""
    label: str = ""


@dataclass(slots=True)
class Step:
    """One step as far as the records tell."""

    number: int
    start: int
    until: int
    """Begin of the next step; of the last one, what it may have lasted to."""
    covers: int = 1
    """Steps that it stands for: more where records were lost."""
    end: int = 0
    """Last instant before `until` that no known interval covers: the step's end."""
    net: int = 0
    """Time from `start` to `until` that no known interval covers."""
    done: bool = True


@dataclass(slots=True)
class Run:
    """One attempt."""

    start: int
    kind: str
    """What began it: 'start' (job_start), 'elastic', 'inferred' (no record says so)."""
    broken_at: int
    """Where what was before it had stopped: its start, or the begin of an elastic wait."""
    label: str = ""
    end: int = 0
    ended: str = ""
    """How the end is known: 'recorded', 'estimated', 'inferred' (job_end was lost), 'now' (it goes on)."""
    error_ns: int = 0
    """How far an estimated end may be off."""
    cause: str = ""
    """'elastic', 'scale up', 'preempted', 'stopped', '' = not known."""
    known: list[Known] = field(default_factory=list)
    """In order of begin."""
    steps: list[Step] = field(default_factory=list)
    open_stage: Known | None = None
    """The last stage that began and was never said to have ended; `end` is not known."""
    last: Event | None = None
    """The record that came last, by its end."""
    event_after: int | None = None
    """Begin of the first save, restore or custom event recorded after the last step began."""
    load_after: int | None = None
    """Begin of the first data loading recorded after the last step began."""
    load_gaps: list[int] = field(default_factory=list)
    """From the end of each data loading to the step after it."""

    @property
    def base(self) -> int | None:
        """Global step at which it began; None if it never began one."""
        return self.steps[0].number if self.steps else None

    @property
    def seen(self) -> int:
        """Last instant that the records tell of."""
        return self.start if self.last is None else max(self.start, self.last.end)

    def closed_at(self, usual: int) -> int | None:
        """Where the last step must have ended, as something else began; None if nothing did.

        Data loading counts only where it lies between steps: a loader that works ahead begins in the middle of one.
        """
        loads_between = bool(self.load_gaps) and median(self.load_gaps) <= usual // 20
        times = [self.event_after, self.load_after if loads_between else None]
        return min((t for t in times if t is not None), default=None)


def runs_of(events: list[Event], now: int | None) -> list[Run]:
    """The attempts that the events tell of, in order.

    Args:
        events: of one writer, in order of time; at least one.
        now: when the reader looks; None = at the last record.
    """
    runs = [_run(part) for part in _parts(events)]
    for run in runs:
        _measure_inside(run)
    for index, run in enumerate(runs):
        following = runs[index + 1] if index + 1 < len(runs) else None
        usual = usual_step([run]) or usual_step(runs)
        _close(run, following, runs, usual, now)
        _finish_last(run, following, usual)
    return runs


def usual_step(runs: list[Run]) -> int:
    """What a step takes, ns: the median over all but first and last steps, known intervals left out; 0 where too few tell."""
    nets = [step.net // step.covers for run in runs for step in run.steps[1:-1] if step.net > 0]
    return int(median(nets)) if len(nets) >= 3 or (nets and len(runs) > 1) else 0


# ---- attempts


def _parts(events: list[Event]) -> Iterator[list[Event]]:
    """Cut the events where an attempt begins: at a job_start, at any start-up after a step, at an elastic wait or re-init."""
    part: list[Event] = []
    stepped = ended = False
    for event in events:
        again = (event.kind in _OPENS_AGAIN and stepped) or (event.kind in ("init_start", "prep_start", "step") and ended)
        if part and (event.kind == "job_start" or again):
            yield part
            part, stepped, ended = [], False, False
        part.append(event)
        stepped = stepped or event.kind == "step"
        ended = ended or event.kind == "job_end"
    if part:
        yield part


def _run(part: list[Event]) -> Run:
    first = part[0]
    kind = "start" if first.kind == "job_start" else "inferred"
    start = first.t
    if first.kind in ("wait_start", "reinit_start"):
        kind = "elastic"
        if first.kind == "wait_start":
            start = next((event.t for event in part if event.kind == "wait_end"), part[-1].end)
    run = Run(start=start, kind=kind, broken_at=first.t, label=first.label)
    begun: dict[tuple[str, str], int] = {}
    loaded: int | None = None
    for event in part:
        if run.last is None or event.end >= run.last.end:
            run.last = event
        if event.kind == "step":
            run.steps.append(Step(event.step or 0, event.t, event.t))
            run.event_after = run.load_after = None
            if loaded is not None:
                run.load_gaps.append(event.t - loaded)
            loaded = None
        else:
            loaded = event.t if event.kind == "data_end" else loaded
            _take(run, event, begun)
    opened = [Known(t, t, *_stage(*name)) for name, t in begun.items() if t >= start and (kind != "elastic" or name[0] != "wait")]
    run.open_stage = max(opened, key=lambda known: known.start, default=None)
    run.known = sorted((known for known in run.known if known.end > start), key=lambda known: (known.start, known.end))
    return run


def _take(run: Run, event: Event, begun: dict[tuple[str, str], int]) -> None:
    name, _, edge = event.kind.rpartition("_")
    if event.kind in ("save", "restore"):
        stage = "checkpoint_save" if event.kind == "save" else "checkpoint_load"
        run.known.append(Known(event.t, event.end, stage, step=event.step, label=event.label))
    elif event.kind == "job_end":
        run.end, run.ended = event.t, "recorded"
    elif edge == "start" and event.kind != "job_start":
        begun[name, event.label] = event.t
    elif edge == "end" and (name, event.label) in begun:
        start = begun.pop((name, event.label))
        if event.t > start:
            run.known.append(Known(start, event.t, *_stage(name, event.label)))
    if event.kind in ("save", "restore", "custom_start") and run.event_after is None:
        run.event_after = event.t
    elif event.kind == "data_start" and run.load_after is None:
        run.load_after = event.t


def _stage(name: str, label: str) -> tuple[str, bool]:
    """(stage, whether it bears the user's own name) of what was recorded with a start and an end."""
    if name in _STAGES:
        return _STAGES[name], False
    if name == "custom" and label.lower().startswith(("eval", "valid", "test")):
        return "evaluation", False
    return (label.replace("/", "-") or name) if name == "custom" else "elastic_wait", True


# ---- steps


def uncovered(start: int, end: int, known: list[Known]) -> list[tuple[int, int]]:
    """The parts of [start, end) that no known interval covers. `known` is in order of begin."""
    pieces: list[tuple[int, int]] = []
    for interval in known:
        if interval.start >= end:
            break
        if interval.end > start:
            if interval.start > start:
                pieces.append((start, interval.start))
            start = max(start, interval.end)
    if start < end:
        pieces.append((start, end))
    return pieces


def _measure_inside(run: Run) -> None:
    """Lengths of all steps that another one follows."""
    first = 0
    for step, following in pairwise(run.steps):
        while first < len(run.known) and run.known[first].end <= step.start:
            first += 1
        step.until = following.start
        step.covers = max(1, following.number - step.number)
        _measure(step, run.known, first)


def _measure(step: Step, known: list[Known], first: int = 0) -> None:
    near: list[Known] = []
    for index in range(first, len(known)):
        if known[index].start >= step.until:
            break
        near.append(known[index])
    pieces = uncovered(step.start, step.until, near)
    step.net = sum(end - start for start, end in pieces)
    step.end = pieces[-1][1] if pieces else step.until


def _finish_last(run: Run, following: Run | None, usual: int) -> None:
    """Where the last step ended, and whether it did."""
    if not run.steps:
        return
    last, closed = run.steps[-1], run.closed_at(usual)
    over = run.ended in ("recorded", "inferred") and following is None
    resumed = following.base if following is not None else None
    if closed is not None:
        last.until = min(closed, run.end)
    elif over or (resumed is not None and resumed > last.number):
        last.until = min(run.end, last.start + usual) if usual else run.end
    else:
        last.until, last.done = run.end, False
    _measure(last, run.known)


# ---- ends


def _close(run: Run, following: Run | None, runs: list[Run], usual: int, now: int | None) -> None:
    """When the attempt ended."""
    preempted = "preempted" if any(known.label == "preempted" for known in run.known) else ""
    if following is None and run.ended != "recorded":
        now = run.seen if now is None else max(now, run.seen)
        over = run.last is not None and run.last.kind in ("save", "custom_end") and bool(run.steps)
        silent = now - run.seen > max(STALL_FACTOR * usual, _SECOND)
        run.end, run.ended = (run.seen, "inferred") if over and silent else (now, "now")
    elif following is None:
        run.end = max(run.end, run.start)
    elif following.kind == "elastic":
        run.end, run.ended = following.broken_at, "recorded"
        run.cause = "scale up" if "scale_up" in following.label.lower() else "elastic"
    elif run.ended == "recorded":
        run.end = min(max(run.end, run.start), following.start)
        whole = bool(run.steps) and following.base == run.steps[-1].number + 1
        run.cause = preempted or ("stopped" if whole else "")
    else:
        run.ended, run.cause = "estimated", preempted
        _estimate_end(run, following, runs, usual)


def _estimate_end(run: Run, following: Run, runs: list[Run], usual: int) -> None:
    """An attempt that vanished ended somewhere between its last record and the next attempt's start."""
    seen = min(run.seen, following.start)
    gap = following.start - seen
    run.end = seen
    if run.last is not None and run.last.kind == "step":
        whole = following.base is not None and following.base > run.steps[-1].number
        run.end = seen + (min(gap, usual) if whole else min(gap, usual) // 2)
        run.error_ns = 0 if whole else min(gap, usual) // 2
    elif run.open_stage is not None and run.open_stage.start == seen:
        took = [known.end - known.start for other in runs for known in other.known if known.stage == run.open_stage.stage]
        run.error_ns = min(gap, int(median(took))) // 2 if took else 0
        run.end = seen + run.error_ns

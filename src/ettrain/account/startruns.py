"""Runs of `ett.Startup`: from journal records to typed data, and what the times say: the critical path and each stage's slack. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ettrain.account.history import NO_LIMIT, StartRun, StartStage
from ettrain.events import Record


def start_run_of(record: Record, offset: int) -> StartRun:
    """The run, or the part of it, that a record tells of.

    Args:
        record: a `startup` record.
        offset: ns from the record's clock to the job's.

    Raises:
        KeyError, TypeError, ValueError: the record is none.
    """
    begin = _number(record["t"])
    stages = tuple(_stage(row, begin + offset) for row in record["stages"])
    words = str(record.get("err") or ""), str(record.get("failed") or "")
    return StartRun(begin + offset, _number(record["end"]) + offset, bool(record.get("sequential")), *words, stages)


def _stage(row: list[Any], t: int) -> StartStage:
    name, lane, begin, end, cpu, needs, after = row
    begun, ended = begin >= 0, end >= 0
    places = tuple(map(_number, needs)), tuple(map(_number, after))
    return StartStage(
        str(name), str(lane), t + _number(begin) if begun else 0, t + _number(end) if begun and ended else 0, _number(cpu), *places
    )


def _number(value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value < NO_LIMIT:
        raise ValueError(value)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class PathRow:
    """One stage and what its time meant for the whole."""

    stage: StartStage
    took_ns: int
    slack_ns: int
    """How much longer it could have taken without lengthening the critical path."""
    critical: bool
    """Whether it is on the critical path; of a run that failed, none is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPath:
    """What decided how long a run took. Times in ns."""

    run: StartRun
    rows: tuple[PathRow, ...]
    """In the order in which the stages began; those that never did are left out."""
    took_ns: int
    """The whole run."""
    path_ns: int
    """The longest chain of stages that had to wait for one another: no overlap can make the run shorter."""
    sum_ns: int
    """All stages one after another."""


def critical_path(run: StartRun) -> CriticalPath:
    """Find the longest chain through the graph, by the times that the stages took."""
    stages = run.stages
    took = [(stage.end or run.end) - stage.start if stage.start else 0 for stage in stages]
    before = [[i for i in (*stage.needs, *stage.after) if i < len(stages)] for stage in stages]
    upto, order = _longest(before, took)
    after: list[list[int]] = [[] for _ in stages]
    for place in order:
        for earlier in before[place]:
            after[earlier].append(place)
    onward, _ = _longest(after, took)
    path = max(upto, default=0)
    through = [upto[i] + onward[i] - took[i] for i in range(len(stages))]
    chain = _chain(before, upto, path) if not run.error else set()
    begun = sorted((i for i in range(len(stages)) if stages[i].start), key=lambda i: (stages[i].start, i))
    rows = tuple(PathRow(stage=stages[i], took_ns=took[i], slack_ns=path - through[i], critical=i in chain) for i in begun)
    return CriticalPath(run=run, rows=rows, took_ns=run.end - run.start, path_ns=path, sum_ns=sum(took))


def _longest(before: list[list[int]], took: list[int]) -> tuple[list[int], list[int]]:
    """Per node: the longest chain that ends with it; and an order in which each node follows those before it. Circles are cut."""
    length = [-1] * len(took)
    order: list[int] = []
    while len(order) < len(took):
        ready = [i for i in range(len(took)) if length[i] < 0 and all(length[j] >= 0 for j in before[i])]
        for i in ready or [next(i for i in range(len(took)) if length[i] < 0)]:
            length[i] = took[i] + max((length[j] for j in before[i] if length[j] >= 0), default=0)
            order.append(i)
    return length, order


def _chain(before: list[list[int]], upto: list[int], path: int) -> set[int]:
    """The nodes of one longest chain."""
    place = next((i for i, length in enumerate(upto) if length == path), None)
    chain: set[int] = set()
    while place is not None and place not in chain:
        chain.add(place)
        place = max(before[place], key=lambda i: upto[i], default=None)
    return chain

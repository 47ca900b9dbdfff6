"""What a run of `ett.Startup` leaves in the journal: whom the main thread's waiting is billed to, and the graph with its times.

Each stage's own span is written where it runs: on the main thread it is billed, beside it shown. While the main thread waits it is billed
to the stage that it waits for: the one on the chain that decided when the run ended, so that a start adds up to its wall time.
"""

from __future__ import annotations

import itertools
import json
import threading
from typing import Any, Final

from ettrain import clock
from ettrain.boost.startup import graph
from ettrain.boost.startup.graph import critical_chain
from ettrain.boost.startup.lanes import Run
from ettrain.events import MAX_LINE, Record
from ettrain.record.guard import guard
from ettrain.record.recorder import recorder

FRAME: Final = "startup"
"""The stage shown as open while the main thread waits; if the process dies meanwhile, its time is billed to it."""
_ROOM: Final = MAX_LINE - 512

_numbers = itertools.count()


class Trace:
    """The record of one run. Raises nothing."""

    def __init__(self) -> None:
        self.begin = clock.monotonic_ns()
        self._frame = 0
        try:
            if not recorder.off:
                self._frame = recorder.open_stage(FRAME, user=True)
        except Exception as error:  # noqa: BLE001 - the guard's rule
            guard.fault("ett.Startup", error)

    def close(self, run: Run) -> None:
        """The run is over, well or badly."""
        try:
            if recorder.off:
                return
            end = clock.monotonic_ns()
            recorder.drop_stage(self._frame)
            on_main = threading.get_ident() == recorder.main
            for name, part, start, stop in waits(run, self.begin, end) if on_main else ():
                recorder.lost_ns += stop - start
                more = {"part": part} if part else {}
                recorder.emit({"k": "span", "t": start, "name": name, "end": stop, "by": "user", **more})
            for record in records(run, self.begin, end):
                recorder.emit(record)
            if run.watch.advice():
                recorder.note(f"ett.Startup: {run.watch.advice()}")
        except Exception as error:  # noqa: BLE001 - the guard's rule
            guard.fault("ett.Startup", error)


def waits(run: Run, begin: int, end: int) -> list[tuple[str, str, int, int]]:
    """(stage to bill, part, from, to): the time in which the calling thread ran no stage itself, by the stage that it waited for."""
    ends = {index: run.ends.get(index, end) for index in run.begins}
    own = sorted((run.begins[index], ends[index]) for index in run.on_caller)
    pieces: list[tuple[str, str, int, int]] = []
    at = begin
    for index in critical_chain(run.waits_for, ends, run.failed):
        stage = run.plan.stages[index]
        upto = min(ends[index], end)
        part = "" if stage.bill == stage.name else stage.name
        pieces += [(stage.bill, part, low, high) for low, high in _without(at, upto, own)]
        at = max(at, upto)
    return pieces


def _without(begin: int, end: int, holes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """[begin, end) less the holes, which are in order and disjoint."""
    left: list[tuple[int, int]] = []
    for low, high in holes:
        if low > begin and begin < end:
            left.append((begin, min(low, end)))
        begin = max(begin, high)
    if begin < end:
        left.append((begin, end))
    return left


def records(run: Run, begin: int, end: int) -> list[Record]:
    """The graph with its times, in as many records as it takes. A stage is [name, lane, begin, end, CPU ns, needs, after]: times in ns
    since the run's begin, -1 where it did not come to that; needs and after are numbers of stages.
    """
    number = next(_numbers)
    head: dict[str, Any] = {"k": "startup", "t": begin, "end": end, "run": number, "sequential": run.sequential}
    if run.error is not None:
        head["err"] = type(run.error).__name__
        head["failed"] = run.plan.stages[run.failed].name if run.failed is not None else ""
    result: list[Record] = []
    chunk: list[list[Any]] = []
    room = _ROOM
    for index, stage in enumerate(run.plan.stages):
        times = [run.begins.get(index, begin - 1) - begin, run.ends.get(index, begin - 1) - begin]
        lane = graph.MAIN if index in run.on_caller else stage.lane
        after = [other for other in run.waits_for(index) if other not in run.plan.needs[index]]
        row = [stage.name[:200], lane, *times, run.cpu_ns.get(index, 0), list(run.plan.needs[index]), after]
        size = len(json.dumps(row))
        if chunk and size > room:
            result.append({**head, "first": index - len(chunk), "stages": chunk})
            chunk, room = [], _ROOM
        chunk.append(row)
        room -= size + 1
    result.append({**head, "first": len(run.plan.stages) - len(chunk), "stages": chunk})
    return result

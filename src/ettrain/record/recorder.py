"""The recorder of one process: its journal, its beat page, its stages and steps. Standard library only.

Life: at first records wait in a list, and in most processes do so for ever; it is promoted once the process behaves like a trainer:
it opens its journal and beat page and writes what waited. A forked child starts again.

Per step it does a handful of integer stores into the beat page; a journal line is written for a stage, and for progress at
steps 1, 2, 4, 8, ... and then at intervals that grow with the job's age. Not here: torch (see `hooks`), the rules of accounting.
"""

from __future__ import annotations

import os
import sys
from _thread import get_ident, get_native_id
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ettrain import clock
from ettrain import events as e
from ettrain.beat import memory_beat, open_beat
from ettrain.events import B_ACTIVE_T, B_BACKWARDS, B_OPTIMIZER_CALLS, B_STEP, B_STEP_T, B_WAIT, Record
from ettrain.record.guard import guard
from ettrain.record.output import Output
from ettrain.record.rank import attempt_folder, is_loader_worker, rank_of_environment
from ettrain.record.stepcount import StepRule
from ettrain.settings import ENV_JOB_DIR

MIN_INTERVAL_NS: Final = 1_000_000_000
CLOCK_INTERVAL_NS: Final = 600_000_000_000
STALL_FACTOR: Final = 10
STALL_FLOOR_NS: Final = 1_000_000_000
_NEVER: Final = 1 << 62
_CODES: Final = {name: code for code, name in enumerate(e.FOUND_NAMES)}

now = clock.monotonic_ns


class Recorder:
    """Records one process. Every method is cheap, and none may raise into the program: callers end their faults in `guard`."""

    __slots__ = (
        "_age0", "_clock_due", "_due", "_fresh_names", "_last", "_limit", "_lost_then", "_open", "_pow2", "_said_delta", "_saves",
        "_window", "at_finish", "at_fork", "backwards", "beat", "ended", "lost_ns", "main", "off", "on_first_step", "output",
        "promoted", "rule", "skipped", "source", "steps", "wait_ns",
    )  # fmt: skip

    def __init__(self) -> None:
        self.at_finish: list[Callable[[], None]] = []
        self.at_fork: list[Callable[[], None]] = []
        self.on_first_step: Callable[[], None] | None = None
        self._reset()
        threads = sys.modules.get("threading")
        if threads is not None and threads.main_thread().ident is not None:
            self.main = threads.main_thread().ident

    def in_child(self) -> None:
        """A fork: the child must not write into its parent's files, and may be a rank of its own."""
        self.output.close_in_child()
        guard.reset()
        self._reset()
        for call in self.at_fork:
            call()

    def _reset(self) -> None:
        self.off = ENV_JOB_DIR not in os.environ
        self.beat: e.Slots = memory_beat()
        self.output = Output()
        self.promoted = self.ended = False
        self.rule = StepRule()
        self.source = ""
        self.steps = self.backwards = self.wait_ns = self.skipped = self.lost_ns = self._saves = 0
        guard.on_fault = self._on_fault
        self.main = get_ident()
        self._open: list[tuple[int, int]] = []
        self._fresh_names: dict[str, int] = {}
        self._said_delta: int | None = None
        self._clock_due = now() + CLOCK_INTERVAL_NS
        self._restart_count()

    def _restart_count(self) -> None:
        self.steps = 0
        self._last = 0
        self._lost_then = 0
        self._limit = _NEVER
        self._pow2 = 1
        self._due = 0
        self._age0 = now()
        self._window = (0, 0, 0)

    # ---- life

    def promote(self, rank: int | None = None, world: int | None = None) -> None:
        """Open the journal and the beat page, once, unless this process is a helper of a trainer."""
        folder = None if self.promoted or self.off else attempt_folder()
        if folder is None:
            return
        if is_loader_worker():
            self.leave()
            return
        self.promoted = True
        if rank is None:
            rank, world = rank_of_environment()
        beat = self.output.open(folder, rank, world)
        if beat is not None:
            self._map_beat(beat)

    def _map_beat(self, path: Path) -> None:
        try:
            page = open_beat(path, os.getpid())
        except OSError as error:
            guard.fault("no beat page, the last steps before a SIGKILL will not be known", error)
            return
        for slot in range(e.B_PID + 1, e.BEAT_SLOTS):
            if self.beat[slot]:
                page[slot] = self.beat[slot]
        self.beat = page

    def _on_fault(self, where: str, text: str, count: int) -> None:
        self.beat[e.B_FAULTS] = count
        if count & (count - 1) == 0:
            self.output.fault({"k": "fault", "t": now(), "where": where, "error": text, "count": count})

    def emit(self, record: Record) -> None:
        """Write a record, or let it wait; dropped where this process is not recorded."""
        if not self.off:
            self.output.emit(record)

    def leave(self) -> None:
        """Record nothing more: it turned out that this process does not train."""
        self.off = True
        self.output.waiting.clear()

    # ---- stages

    def open_stage(self, name: str, *, user: bool = False) -> int:
        """Begin a stage; returns its begin. On the main thread it shows on the beat page, so that SIGKILL does not lose it."""
        begin = now()
        if get_ident() == self.main:
            beat = self.beat
            depth = len(self._open)
            if depth < e.MAX_DEPTH:
                beat[e.B_STACK + 2 * depth] = self._code(name, user=user)
                beat[e.B_STACK + 2 * depth + 1] = begin
            beat[e.B_DEPTH] = depth + 1
            self._open.append((begin, self.lost_ns))
        return begin

    def close_stage(self, name: str, begin: int, *, user: bool = False, steps: int = 0, write: bool = True, **more: Any) -> Record:
        """End a stage and write its span.

        Args:
            name: the stage.
            begin: what `open_stage` returned.
            user: whether the program marked it.
            steps: steps counted inside, which make a user's stage a frame, not a wait.
            write: False where the caller writes the record, when it knows more.
            more: attributes.
        Returns:
            The record.
        """
        end = now()
        record: Record = {"k": "span", "t": begin, "name": name, "end": end, "by": "user" if user else "found", **more}
        if steps:
            record["steps"] = steps
        index = self._index(begin)
        if index is None and get_ident() != self.main:
            record["lane"] = get_native_id()
        if write:
            self.emit(record)
        if index is not None:
            lost_then = self._open[index][1]
            self._pop(index)
            self.beat[B_ACTIVE_T] = end
            if not steps:
                self.lost_ns = max(self.lost_ns, lost_then + end - begin)
        return record

    def drop_stage(self, begin: int) -> None:
        """End a stage that turned out to be none."""
        index = self._index(begin)
        if index is not None:
            self._pop(index)

    def _index(self, begin: int) -> int | None:
        """Where in the stack of open stages the one begun then stands; None if it never was there."""
        opened = self._open
        for index in range(len(opened) - 1, -1, -1):
            if opened[index][0] == begin:
                return index
        return None

    def _pop(self, index: int) -> None:
        del self._open[index:]
        self.beat[e.B_DEPTH] = index

    def span(self, name: str, begin: int, end: int, *, lost_then: int | None = None, **more: Any) -> None:
        """Write a stage that is known only after the fact; it takes its time from the step it lies in.

        Args:
            name: the stage.
            begin: ns.
            end: ns.
            lost_then: `lost_ns` at `begin`, where spans within this one may have been written already.
            more: attributes.
        """
        self.lost_ns = self.lost_ns + end - begin if lost_then is None else max(self.lost_ns, lost_then + end - begin)
        self.emit({"k": "span", "t": begin, "name": name, "end": end, "by": "found", **more})

    def mark(self, name: str, t: int, **more: Any) -> None:
        """Write an instant."""
        self.emit({"k": "mark", "t": t, "name": name, **more})

    def note(self, text: str) -> None:
        """Write something that a reader of the report should know."""
        self.emit({"k": "note", "t": now(), "text": text})

    def next_save(self) -> int:
        """A number for a checkpoint, by which a later `commit` refers to it."""
        self._saves += 1
        return self._saves

    def imported(self, name: str, begin: int, end: int) -> None:
        """Take an outermost import from the boot module."""
        self.span("imports", begin, end, part=import_part(name))

    def _code(self, name: str, *, user: bool) -> int:
        code = None if user else _CODES.get(name)
        if code is None:
            code = self._fresh_names.get(name)
            if code is None:
                code = self._fresh_names[name] = e.FIRST_USER_CODE + len(self._fresh_names)
                self.emit({"k": "name", "t": now(), "code": code, "name": name})
        return code

    # ---- steps

    def backward_done(self) -> None:
        """A backward pass ended. While no optimizer was ever seen, it counts as a step."""
        self.backwards = backwards = self.backwards + 1
        beat = self.beat
        beat[B_BACKWARDS] = backwards
        if self.rule.calls == 0 and self.source in ("", "backward"):
            if not self.source:
                self._set_source("backward")
            self.count(now())
        else:
            beat[B_ACTIVE_T] = now()

    def optimizer_done(self, key: int) -> None:
        """An optimizer's step ended."""
        rule = self.rule
        if rule.optimizer_called(key):
            if self.source != "optimizer":
                if self.source == "program":
                    return
                self._set_source("optimizer")
            self.count(now())
        else:
            self.beat[B_OPTIMIZER_CALLS] = rule.calls

    def step_skipped(self) -> None:
        """A step was tried and left out, e.g. by a gradient scaler that found an infinity."""
        self.skipped += 1
        self.beat[e.B_SKIPPED] = self.skipped
        self.beat[B_ACTIVE_T] = now()

    def program_step(self, step: int | None) -> None:
        """The program itself says that a step is finished; from then on only that counts."""
        if self.source != "program":
            self._set_source("program")
        if step is not None and step - self.steps != self._said_delta:
            self.said(step)
        self.count(now())

    def framework_step(self, step: int) -> None:
        """A framework's own count of finished steps, after the one that just ended."""
        if self.steps and step - self.steps != self._said_delta:
            self.said(step)

    def said(self, step: int) -> None:
        """The program's own number of the step that is about to be counted or was counted last, as `steps` before it."""
        self._said_delta = step - self.steps
        self.beat[e.B_SAID] = max(0, step) + 1
        self.emit({"k": "said", "t": now(), "local": self.steps, "step": step})

    def _set_source(self, source: str) -> None:
        if self.source:
            self.emit({"k": "recount", "t": now()})
            self.beat[B_STEP] = self.beat[B_STEP_T] = self.beat[e.B_FIRST_STEP_T] = 0
            self._restart_count()
        self.source = source
        self.mark("step_source", now(), source=source)

    def count(self, t: int) -> None:
        """A step ended at `t`."""
        self.steps = steps = self.steps + 1
        beat = self.beat
        beat[B_STEP_T] = t
        beat[B_STEP] = steps
        if t - self._last > self._limit:
            self._slow_step(t)
        self._last = t
        self._lost_then = self.lost_ns
        if steps == self._pow2 or t > self._due:
            self.progress(t)

    def _slow_step(self, t: int) -> None:
        """The step took far longer than usual: unless found stages explain it, it stalled."""
        net = t - self._last - (self.lost_ns - self._lost_then)
        if net > self._limit:
            typical = self._limit // STALL_FACTOR if self._limit > STALL_FLOOR_NS else self.beat[e.B_TYPICAL]
            self.emit({"k": "slow", "t": self._last, "end": t, "typical": typical})
            self.lost_ns += net - typical

    def progress(self, t: int) -> None:
        """Write where we are, learn what a step takes, and decide when to write next."""
        if not self.promoted:
            self.promote()
        steps, beat, rule = self.steps, self.beat, self.rule
        if not beat[e.B_FIRST_STEP_T] and steps:
            beat[e.B_FIRST_STEP_T] = t
            self.mark("first_step", t)
            if self.on_first_step is not None:
                self.on_first_step()
        begin, steps_then, lost_then = self._window
        if begin and steps > steps_then:
            typical = max(0, t - begin - (self.lost_ns - lost_then)) // (steps - steps_then)
            beat[e.B_TYPICAL] = typical
            self._limit = beat[e.B_LIMIT] = max(STALL_FACTOR * typical, STALL_FLOOR_NS)
        self._window = (t, steps, self.lost_ns)
        while self._pow2 <= steps:
            self._pow2 *= 2
        self._due = t + max(MIN_INTERVAL_NS, (t - self._age0) >> 9)
        beat[e.B_BATCHES], beat[B_WAIT], beat[B_OPTIMIZER_CALLS] = rule.batches, self.wait_ns, rule.calls
        record: Record = {"k": "prog", "t": t, "step": steps, "wait": self.wait_ns, "batches": rule.batches, "calls": rule.calls}
        record.update({"backwards": self.backwards, "skipped": self.skipped, "limit": 0 if self._limit == _NEVER else self._limit})
        self.emit(record)
        if t > self._clock_due:
            self._clock_due = t + CLOCK_INTERVAL_NS
            self._wall_clock()

    def waited(self, begin: int, end: int) -> None:
        """The main thread waited for data: a span of its own if long, else added to the short waits."""
        took = end - begin
        if took > MIN_INTERVAL_NS // 4 and took > (end - self._age0) >> 11:
            self.span("data_wait", begin, end)
        else:
            self.lost_ns += took
            self.wait_ns += took
            self.beat[B_WAIT] = self.wait_ns

    # ---- the end

    def finish(self) -> None:
        """The interpreter begins to end in good order."""
        if self.ended:
            return
        self.ended = True
        if not self.promoted:
            return
        for call in (self._last_progress, *self.at_finish, self._wall_clock):
            try:
                call()
            except Exception as error:  # noqa: BLE001 - the guard's rule
                guard.fault("end of the process", error)
        self.emit({"k": "exit", "t": now(), "step": self.steps})

    def _last_progress(self) -> None:
        if self.steps:
            self.progress(self.beat[B_STEP_T])

    def _wall_clock(self) -> None:
        wall, t = clock.wall_pair()
        self.emit({"k": "clock", "t": t, "wall": wall})


def import_part(module: str) -> str:
    """Label of an import: the distribution's top package, torch's big lazy parts apart."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "torch" else parts[0]


recorder = Recorder()
"""The process's recorder."""

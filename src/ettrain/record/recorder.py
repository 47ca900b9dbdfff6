"""The recorder of one process: steps, waits and stalls on top of its stages. Standard library only.

Per step it does a handful of integer stores into the beat page; a journal line is written for a stage, and for progress at
steps 1, 2, 4, 8, ... and then at intervals that grow with the job's age. Not here: torch (see `hooks`), the rules of accounting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ettrain import clock
from ettrain import events as e
from ettrain.events import B_ACTIVE_T, B_BACKWARDS, B_OPTIMIZER_CALLS, B_STEP, B_STEP_T, B_WAIT
from ettrain.record.guard import guard
from ettrain.record.stages import StageRecorder
from ettrain.record.stepcount import StepRule

MIN_INTERVAL_NS: Final = 1_000_000_000
CLOCK_INTERVAL_NS: Final = 600_000_000_000
STALL_FACTOR: Final = 10
STALL_FLOOR_NS: Final = 1_000_000_000
_NEVER: Final = 1 << 62

now = clock.monotonic_ns


class Recorder(StageRecorder):
    """Records one process. Every method is cheap, and none may raise into the program: callers end their faults in `guard`."""

    __slots__ = (
        "_age0", "_clock_due", "_due", "_last", "_limit", "_lost_then", "_pow2", "_said_delta", "_window", "at_finish", "backwards",
        "ended", "on_first_step", "rule", "skipped", "source", "steps", "wait_ns",
    )  # fmt: skip

    def __init__(self) -> None:
        self.at_finish: list[Callable[[], None]] = []
        self.on_first_step: Callable[[], None] | None = None
        super().__init__()

    def _reset(self) -> None:
        super()._reset()
        self.ended = False
        self.rule = StepRule()
        self.source = ""
        self.backwards = self.wait_ns = self.skipped = 0
        self._said_delta: int | None = None
        self._clock_due = self._born + CLOCK_INTERVAL_NS
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

    def backward_done(self) -> None:
        """A backward pass ended. While no optimizer was ever seen, it counts as a step."""
        if self.paused:
            return
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
        if self.paused:
            return
        self.skipped += 1
        self.beat[e.B_SKIPPED] = self.skipped
        self.beat[B_ACTIVE_T] = now()

    def program_step(self, step: int | None) -> None:
        """The program itself says that a step is finished; from then on only that counts."""
        if self.paused:
            return
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
        self._due = t + max(MIN_INTERVAL_NS, (t - self._age0) >> 7)
        beat[e.B_BATCHES], beat[B_WAIT], beat[B_OPTIMIZER_CALLS] = rule.batches, self.wait_ns, rule.calls
        self._emit_progress(t)
        if t > self._clock_due:
            self._clock_due = t + CLOCK_INTERVAL_NS
            self._wall_clock()

    def about_to_save(self) -> None:
        """A checkpoint is about to be taken: what was waited for before it must not be counted after it."""
        if self.steps:
            self._emit_progress(self.beat[B_STEP_T])

    def _emit_progress(self, t: int) -> None:
        limit = 0 if self._limit == _NEVER else self._limit
        self.emit({"k": "prog", "t": t, "step": self.steps, "wait": self.wait_ns, "limit": limit})

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
        rule = self.rule
        counts = {"batches": rule.batches, "calls": rule.calls, "backwards": self.backwards, "skipped": self.skipped}
        self.emit({"k": "exit", "t": now(), "step": self.steps, **counts})

    def _last_progress(self) -> None:
        if self.steps:
            self.progress(self.beat[B_STEP_T])

    def _wall_clock(self) -> None:
        wall, t = clock.wall_pair()
        self.emit({"k": "clock", "t": t, "wall": wall})


recorder = Recorder()
"""The process's recorder."""

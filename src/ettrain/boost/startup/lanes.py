"""What runs a plan: a thread per stage, one thread for all collectives, the main thread for those that must be there.

The first exception ends the run: no further stage begins, processes are killed, and it is raised without waiting for a thread that
still works, since a thread cannot be ended. Not here: what a run looks like in the report (see `trace`).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, Final

from ettrain import clock
from ettrain.boost.startup import graph
from ettrain.boost.startup.graph import Plan, Stage
from ettrain.boost.startup.helper import Helper
from ettrain.boost.startup.order import Agreement
from ettrain.boost.startup.threads import ThreadSettings
from ettrain.boost.startup.watch import Watch
from ettrain.record.api import stage as marked

_NAME: Final = "ettrain-startup"

_under_way: dict[int, str] = {}
"""Thread -> the stage that it runs now, in this process."""


def other_stages() -> list[str]:
    """Names of the stages that run on other threads now."""
    return [name for thread, name in list(_under_way.items()) if thread != threading.get_ident()]


class Run:
    """One run of a plan: one stage after another, on the calling thread."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.results: dict[int, Any] = {}
        self.begins: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        self.cpu_ns: dict[int, int] = {}
        self.error: BaseException | None = None
        self.failed: int | None = None
        """The stage that raised it."""
        self.on_caller: list[int] = []
        """The stages that ran on the thread which called `run`, in order."""
        self.watch = Watch()
        self._agreement = Agreement([stage.name for stage in plan.stages if stage.collective])
        self._lock = threading.RLock()
        self._children: list[Helper] = []

    @property
    def sequential(self) -> bool:
        """Whether stages run one after another."""
        return True

    def waits_for(self, index: int) -> tuple[int, ...]:
        """What the stage had to wait for."""
        return self.plan.waits_for(index)

    def run(self) -> None:
        """Run every stage, or up to the first that fails; the exception is then in `error`."""
        for index in self.plan.order:
            self.on_caller.append(index)
            self._execute(index)
            if self.error is not None:
                return

    def _execute(self, index: int) -> None:
        """Run one stage on the calling thread. Raises nothing: what it raises is kept."""
        stage = self.plan.stages[index]
        begin, cpu = clock.monotonic_ns(), clock.thread_cpu_ns()
        with self._lock:
            if self.error is not None:
                return
            self.begins[index] = begin
            self.watch.begins(stage)
        value: Any = None
        error: BaseException | None = None
        try:
            if stage.lane != graph.PROCESS:
                _under_way[threading.get_ident()] = stage.name
            with marked(stage.bill, part="" if stage.bill == stage.name else stage.name):
                value = self._call(stage, {self.plan.stages[need].name: self.results[need] for need in self.plan.needs[index]})
        except BaseException as raised:  # noqa: BLE001 - it is raised again where `run` was called
            error = raised
        finally:
            _under_way.pop(threading.get_ident(), None)
        self._ended(index, value, error, clock.thread_cpu_ns() - cpu)

    def _call(self, stage: Stage, arguments: dict[str, Any]) -> Any:
        if stage.lane == graph.PROCESS:
            return self._elsewhere(stage, arguments)
        if stage.collective:
            self._agreement.check()
        value = stage.call(**arguments)
        if stage.collective:
            self._agreement.check()
        return value

    def _elsewhere(self, stage: Stage, arguments: dict[str, Any]) -> Any:
        child = Helper(stage, arguments)
        with self._lock:
            self._children.append(child)
            if self.error is not None:
                child.kill()
        return child.result()

    def _ended(self, index: int, value: Any, error: BaseException | None, cpu_ns: int) -> None:
        with self._lock:
            self.ends[index] = clock.monotonic_ns()
            self.cpu_ns[index] = cpu_ns
            self.watch.ends(self.plan.stages[index])
            if error is None:
                self.results[index] = value
            else:
                self._fail(error, index)

    def _fail(self, error: BaseException, index: int | None = None) -> None:
        """Take the first exception, and end what can be ended."""
        with self._lock:
            if self.error is not None:
                return
            self.error, self.failed = error, index
            for child in self._children:
                child.kill()


class Overlapped(Run):
    """The same with as much overlap as the dependencies allow."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._changed = threading.Condition(self._lock)
        self._begun: set[int] = set()
        self._for_main: deque[int] = deque()
        self._for_collectives: SimpleQueue[int | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._collectives: threading.Thread | None = None
        self._settings = ThreadSettings()

    @property
    def sequential(self) -> bool:
        """Whether stages run one after another."""
        return False

    def waits_for(self, index: int) -> tuple[int, ...]:
        """What the stage had to wait for; on the main thread also the stage that was there before it."""
        place = self.on_caller.index(index) if index in self.on_caller else 0
        return self.plan.waits_for(index) + ((self.on_caller[place - 1],) if place else ())

    def run(self) -> None:
        """Run every stage, or until one fails; the exception is then in `error`."""
        try:
            with self._changed:
                self._begin_ready()
            while (index := self._next_for_main()) is not None:
                self.on_caller.append(index)
                self._execute(index)
                self._settings = ThreadSettings()
        except BaseException as error:  # noqa: BLE001 - a signal handler of the program's: it ends the run like a stage's exception
            self._fail(error)
        finally:
            self._close()

    def _next_for_main(self) -> int | None:
        """Wait for a stage that needs this thread; None once all have ended or one failed."""
        with self._changed:
            while not self._for_main and self.error is None and len(self.ends) < len(self.plan.stages):
                self._changed.wait()
            return self._for_main.popleft() if self._for_main and self.error is None else None

    def _begin_ready(self) -> None:
        for index, stage in enumerate(self.plan.stages):
            if index in self._begun or not self.results.keys() >= set(self.plan.waits_for(index)):
                continue
            self._begun.add(index)
            if stage.lane == graph.MAIN:
                self._for_main.append(index)
            elif stage.lane == graph.COLLECTIVE:
                self._for_collectives.put(index)
                if self._collectives is None:
                    self._collectives = self._thread("collectives", self._run_collectives)
            else:
                self._thread(stage.name, partial(self._execute, index))

    def _thread(self, name: str, work: Callable[[], None]) -> threading.Thread:
        settings = self._settings
        thread = threading.Thread(target=lambda: settings.run(work), name=f"{_NAME}-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _run_collectives(self) -> None:
        while (index := self._for_collectives.get()) is not None:
            self._execute(index)

    def _ended(self, index: int, value: Any, error: BaseException | None, cpu_ns: int) -> None:
        with self._changed:
            super()._ended(index, value, error, cpu_ns)
            if self.error is None:
                try:
                    self._begin_ready()
                except BaseException as fault:  # noqa: BLE001 - no thread can be started, or the program's signal handler raised
                    self._fail(fault)
            self._changed.notify_all()

    def _fail(self, error: BaseException, index: int | None = None) -> None:
        with self._changed:
            super()._fail(error, index)
            self._changed.notify_all()

    def _close(self) -> None:
        """Leave no thread behind, save those that still work after a failure."""
        self._for_collectives.put(None)
        for thread in self._threads:
            if self.error is None:
                thread.join()

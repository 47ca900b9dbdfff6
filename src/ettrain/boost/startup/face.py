"""`ett.Startup`: declare the stages of a start, then run them."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from multiprocessing import process
from types import SimpleNamespace
from typing import Any, TypeVar, overload

from ettrain.boost.startup.graph import MAIN, Stage, plan_of, stage_of
from ettrain.boost.startup.lanes import Overlapped, Run
from ettrain.boost.startup.trace import Trace
from ettrain.errors import UsageError
from ettrain.settings import ENV_STARTUP_SEQUENTIAL

F = TypeVar("F", bound=Callable[..., Any])


class Startup:
    """The stages of a start: functions whose parameters name the stages that they depend on, as in pytest fixtures (those with a default do not).

    Independent stages overlap. Results are the same as without overlap, provided that stages share nothing but what they hand on, and
    that those which draw from the global random generators say so.

        start = ett.Startup()

        @start.stage
        def loader(): ...

        @start.stage(collective=True)
        def ddp(model, process_group): ...

        ready = start.run()   # ready.loader, ready.ddp
    """

    def __init__(self) -> None:
        self._stages: dict[str, Stage] = {}

    @overload
    def stage(self, function: F, /) -> F: ...

    @overload
    def stage(
        self, /, *, collective: bool = False, process: bool = False, main: bool = False, rng: bool = False, bill: str = ""
    ) -> Callable[[F], F]: ...

    def stage(
        self,
        function: Any = None,
        /,
        *,
        collective: bool = False,
        process: bool = False,
        main: bool = False,
        rng: bool = False,
        bill: str = "",
    ) -> Any:
        """Declare a stage; it bears the function's name. Runs on a thread of its own, unless told otherwise.

        Args:
            function: the function; it stays as it is and can still be called.
            collective: it communicates with the other ranks: such stages run one after another, as declared, on every rank.
            process: it holds the interpreter lock for long: it runs in another process. A function of a module; arguments and result
                must pickle.
            main: it must run on the main thread (signal handlers, the first touch of a device).
            rng: it draws from the global random generators (Python's, numpy's, torch's): such stages run one after another as declared,
                so that each draws what it would draw if nothing overlapped.
            bill: stage of the lifecycle its time is billed to, e.g. `process_group_init` (default: its own name).
        Raises:
            UsageError: it cannot be a stage, or there is one of that name.
        """

        def declare(function: F) -> F:
            stage = stage_of(function, collective=collective, process=process, main=main, rng=rng, bill=bill)
            before = self._stages.get(stage.name)
            if before is not None:
                raise UsageError(f"two stages are named '{stage.name}': {before.where} and {stage.where}. Rename one of them.")
            self._stages[stage.name] = stage
            return function

        return declare if function is None else declare(function)

    def run(self, *, sequential: bool | None = None) -> SimpleNamespace:
        """Run all stages.

        Args:
            sequential: one after another on this thread, for comparison (default: ETT_STARTUP_SEQUENTIAL, else False).
        Returns:
            The results, as attributes named like the stages.
        Raises:
            UsageError: the stages cannot run, e.g. a dependency is missing; none has begun.
            BaseException: what a stage raised, as it was raised.
        """
        if sequential is None:
            sequential = os.environ.get(ENV_STARTUP_SEQUENTIAL, "") not in ("", "0")
        plan = plan_of(list(self._stages.values()))
        self._check_place()
        trace = Trace()
        run: Run | None = None
        try:
            run = Run(plan) if sequential else Overlapped(plan)
            run.run()
        finally:
            if run is not None:
                trace.close(run)
        self._raise(run)
        if advice := run.watch.advice():
            sys.stderr.write(f"ettrain: ett.Startup: {advice}\n")
        return SimpleNamespace(**{stage.name: run.results[index] for index, stage in enumerate(plan.stages)})

    def _check_place(self) -> None:
        if getattr(process.current_process(), "_inheriting", False):
            raise UsageError(
                "ett.Startup.run() was reached while another process imports this program, as a stage with process=True makes it do. "
                'Guard it: if __name__ == "__main__": main()'
            )
        wants_main = next((stage for stage in self._stages.values() if stage.lane == MAIN), None)
        if wants_main is not None and threading.current_thread() is not threading.main_thread():
            raise UsageError(f"{wants_main} must run on the main thread, and run() was called on another. Call it on the main thread.")

    def _raise(self, run: Run) -> None:
        error, run.error = run.error, None
        if error is None:
            return
        if run.failed is not None:
            error.add_note(f"raised in {run.plan.stages[run.failed]} of ett.Startup")
        try:
            raise error
        finally:
            del error

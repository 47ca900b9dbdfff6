"""torch.compile: when it compiles, which function, and why again. And how dynamo is kept from looking into the recorder."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from ettrain import clock
from ettrain.events import Record
from ettrain.record.guard import guard
from ettrain.record.hooks import private
from ettrain.record.hooks.training import first_forward
from ettrain.record.hooks.wrap import argument, wraps
from ettrain.record.recorder import recorder

_MEASURED: Final = ("DYNAMO", "LAZY_BACKWARD")
"""What torch writes metrics of, a moment after it called back."""


def on_trace_rules(module: Any) -> None:
    """Our wrappers are frames that dynamo would try to trace: each would cost the program a graph break."""
    if private(module) is not None:
        module.add("ettrain")


def on_eval_frame(module: Any) -> None:
    """A compiled module warns of global hooks when it is called: ours is gone by then."""
    found = private(module)
    if found is None:
        first_forward.stop()
        return
    run = found["OptimizedModule.__init__"]

    @wraps(run)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - the method it wraps
        first_forward.stop()
        run(self, *args, **kwargs)

    module.OptimizedModule.__init__ = __init__


class Compilation:
    """The compilation under way, outermost only; then, until torch has written down its metrics, the one just done."""

    __slots__ = ("after", "begin", "done", "frames", "functions", "measures")

    def __init__(self) -> None:
        self.measures = False
        self.after: Callable[[Record], None] | None = None
        """Called with the span of each compilation once its metrics are known."""
        self.reset()

    def reset(self) -> None:
        """As new, in a forked child."""
        self.begin = 0
        self.done: Record | None = None
        self.functions: dict[str, str] = {}
        """Name of the function by compile id: a lazy backward has the id of its forward."""
        self.frames: dict[str, tuple[str, str]] = {}
        """Name and place of the function by the part of the compile id that all its compilations share."""

    def started(self, arguments: Any) -> None:
        """Before dynamo traces anything."""
        try:
            self.flush()
            first_forward.seen("torch.compile")
            self.begin = recorder.open_stage("compile")
        except Exception as error:  # noqa: BLE001 - the guard's rule
            guard.fault("compile", error)

    def ended(self, arguments: Any) -> None:
        """It is done; which function it was is told by `measured`, a moment later, where torch measures it."""
        try:
            begin, self.begin = self.begin, 0
            if not begin:
                return
            trigger = str(getattr(getattr(arguments, "callback_trigger", None), "name", ""))
            compile_id = str(getattr(arguments, "compile_id", "") or "")
            self.done = recorder.close_stage("compile", begin, write=False, trigger=trigger, compile_id=compile_id)
            if not self.measures or trigger not in _MEASURED:
                self.flush()
        except Exception as error:  # noqa: BLE001 - the guard's rule
            guard.fault("compile", error)

    def measured(self, metrics: Any) -> None:
        """Take function and reason from what torch has measured."""
        if not isinstance(metrics, dict):
            return
        if metrics.get("recompile_reason") and not metrics.get("co_name"):
            self.refused(str(metrics["recompile_reason"])[:1000])
            return
        done = self.done
        if done is None:
            return
        name = metrics.get("co_name")
        if name:
            self.functions[done["compile_id"]] = str(name)
            done["where"] = f"{metrics.get('co_filename')}:{metrics.get('co_firstlineno')}"
            self.frames[_frame_of(done["compile_id"])] = (str(name), done["where"])
        part = str(name or self.functions.get(done["compile_id"], ""))
        if part:
            done["part"] = part
        if metrics.get("recompile_reason"):
            done["reason"] = str(metrics["recompile_reason"])[:1000]
        for key, name in (("hits", "inductor_fx_local_cache_hit_count"), ("misses", "inductor_fx_local_cache_miss_count")):
            if metrics.get(name):
                done[key] = int(metrics[name])
        self.flush()
        if self.after is not None:
            self.after(done)

    def refused(self, reason: str) -> None:
        """A function was not compiled again, since it has been too often; torch does not say which, but which of its graphs did not fit."""
        name, where = self.frames.get(_frame_of(reason.partition(":")[0]), ("", ""))
        recorder.emit({"k": "refused", "t": clock.monotonic_ns(), "part": name, "where": where, "reason": reason})

    def flush(self) -> None:
        """Write the one just done, with what is known of it."""
        done, self.done = self.done, None
        if done is not None:
            recorder.emit(done)


def _frame_of(compile_id: str) -> str:
    return compile_id.rpartition("/")[0]


compilation = Compilation()
recorder.at_fork.append(compilation.reset)
recorder.at_finish.append(compilation.flush)


class _Kept(list[Any]):
    """A callback list that keeps ours when `torch._dynamo.reset()` clears it."""

    def clear(self) -> None:
        self[:] = [callback for callback in self if callback in _ours]


_ours: list[Any] = [compilation.started, compilation.ended]


def watch_compiles(started: Callable[[], None], ended: Callable[[], None]) -> None:
    """Have `started` and `ended` called around each compilation of this process, nested ones left out. What they raise is a fault of ours."""
    from torch._dynamo import callback as module

    handler = module.callback_handler
    for name, call in (("start_callbacks", started), ("end_callbacks", ended)):
        callback = partial(_guarded, call)
        _ours.append(callback)
        setattr(handler, name, _Kept([*getattr(handler, name), callback]))


def _guarded(call: Callable[[], None], arguments: Any) -> None:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - the guard's rule
        guard.fault("around a compilation", error)


def on_dynamo_callback(module: Any) -> None:
    """Compilations, outermost ones only: torch calls back once however deep they nest."""
    if private(module) is None:
        return
    handler = module.callback_handler
    handler.start_callbacks = _Kept([compilation.started, *handler.start_callbacks])
    handler.end_callbacks = _Kept([compilation.ended, *handler.end_callbacks])


def on_dynamo_utils(module: Any) -> None:
    """torch's own metrics of a compilation. They come after the callback of its end: this is the one place that waits for them."""
    found = private(module)
    if found is None:
        return
    run = found["record_compilation_metrics"]

    @wraps(run)
    def record_compilation_metrics(*args: Any, **kwargs: Any) -> Any:
        try:
            compilation.measured(argument(args, kwargs, 2, "metrics"))
        except Exception as error:  # noqa: BLE001 - the guard's rule
            guard.fault("compile", error)
        return run(*args, **kwargs)

    module.record_compilation_metrics = record_compilation_metrics
    compilation.measures = True

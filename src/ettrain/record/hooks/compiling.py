"""torch.compile: when it compiles, which function, and why again. And how dynamo is kept from looking into the recorder."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from ettrain.record.guard import guard
from ettrain.record.hooks import private
from ettrain.record.recorder import recorder

_OURS = ("ettrain.record.hooks.training", "ettrain.record.hooks.data", "ettrain.record.hooks.wrap", "ettrain.record.api", "ettrain.record.recorder")


def on_trace_rules(module: ModuleType) -> None:
    """Our wrappers are frames that dynamo would try to trace: each would cost the program a graph break."""
    if private(module, "add") is None:
        return
    for name in _OURS:
        __import__(name)
        module.add(name)


class _Kept(list[Any]):
    """A callback list that keeps its first entry, ours, when `torch._dynamo.reset()` clears it."""

    def clear(self) -> None:
        self[:] = self[:1]


def on_dynamo_callback(module: ModuleType) -> None:
    """Compilations, outermost ones only: torch calls back once however deep they nest."""
    handler = private(module, "callback_handler")
    if handler is None or private(module, "callback_handler.start_callbacks") is None:
        return
    state = {"begin": 0, "known": 0}

    def started(arguments: Any) -> None:
        try:
            state["known"] = len(_metrics())
            state["begin"] = recorder.open_stage("compile")
        except Exception as error:  # noqa: BLE001 - the guard's rule
            guard.fault("compile", error)

    def ended(arguments: Any) -> None:
        try:
            begin, state["begin"] = state["begin"], 0
            if begin:
                recorder.close_stage("compile", begin, **_details(arguments, state["known"]))
        except Exception as error:  # noqa: BLE001 - the guard's rule
            guard.fault("compile", error)

    handler.start_callbacks = _Kept([started, *handler.start_callbacks])
    handler.end_callbacks = _Kept([ended, *handler.end_callbacks])


def _metrics() -> list[Any]:
    utils = sys.modules.get("torch._dynamo.utils")
    get = getattr(utils, "get_compilation_metrics", None)
    return list(get()) if get is not None else []


def _details(arguments: Any, known: int) -> dict[str, Any]:
    """Function and reason of the compilation, as far as torch has written them down."""
    trigger = getattr(getattr(arguments, "callback_trigger", None), "name", "")
    compile_id = str(getattr(arguments, "compile_id", "") or "")
    details: dict[str, Any] = {"trigger": trigger, "compile_id": compile_id}
    frame = next((m for m in reversed(_metrics()[known:]) if getattr(m, "co_name", None)), None)
    if frame is not None:
        details["part"] = str(getattr(frame, "co_name", ""))
        details["where"] = f"{getattr(frame, 'co_filename', '')}:{getattr(frame, 'co_firstlineno', '')}"
        reason = getattr(frame, "recompile_reason", None)
        if reason:
            details["reason"] = str(reason)[:1000]
    return details


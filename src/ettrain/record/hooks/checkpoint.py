"""Checkpoints saved and loaded: torch.save/load, DCP (also asynchronous), safetensors."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from ettrain.record.guard import guard
from ettrain.record.hooks.identity import identity_of
from ettrain.record.hooks.wrap import Details, argument, nesting, staged
from ettrain.record.recorder import now, recorder


def _saved(position: int, name: str, via: str) -> tuple[Details, Details]:
    """What is known before and after a save whose target is that argument."""

    def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        return {"step": recorder.steps, "save": recorder.next_save(), "part": via}

    def after(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        return {"id": identity_of(argument(args, kwargs, position, name))}

    return before, after


def _loaded(position: int, name: str, via: str) -> Details:
    def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        return {"step": recorder.steps, "part": via, "id": identity_of(argument(args, kwargs, position, name))}

    return before


def on_serialization(module: ModuleType) -> None:
    """torch.save(obj, f) and torch.load(f)."""
    before, after = _saved(1, "f", "torch.save")
    module.save = staged(module.save, "checkpoint_save", before=before, after=after)
    module.load = staged(module.load, "checkpoint_load", before=_loaded(0, "f", "torch.load"))


def on_safetensors(module: ModuleType) -> None:
    """safetensors.torch.save_file(tensors, filename) and load_file(filename). `safe_open` is not seen."""
    before, after = _saved(1, "filename", "safetensors")
    module.save_file = staged(module.save_file, "checkpoint_save", before=before, after=after)
    module.load_file = staged(module.load_file, "checkpoint_load", before=_loaded(0, "filename", "safetensors"))


def on_dcp_load(module: ModuleType) -> None:
    """torch.distributed.checkpoint.load."""

    def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        return {"step": recorder.steps, "part": "dcp.load", "id": identity_of(_dcp_target(kwargs, "storage_reader"))}

    module.load = staged(module.load, "checkpoint_load", before=before)


def on_dcp_save(module: ModuleType) -> None:
    """torch.distributed.checkpoint.save and async_save."""

    def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        return {"step": recorder.steps, "save": recorder.next_save(), "part": "dcp.save"}

    def after(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        return {"id": identity_of(_dcp_target(kwargs, "storage_writer"))}

    module.save = staged(module.save, "checkpoint_save", before=before, after=after)
    module.async_save = _async(module.async_save)


def _dcp_target(kwargs: dict[str, Any], storage: str) -> Any:
    """The folder of a DCP call: `checkpoint_id`, else the storage's path."""
    target = kwargs.get("checkpoint_id")
    return getattr(kwargs.get(storage), "path", None) if target is None else target


def _async(run: Any) -> Any:
    """An asynchronous save: the call blocks, a background thread or process writes, a future tells when it is durable."""

    @functools.wraps(run)
    def async_save(*args: Any, **kwargs: Any) -> Any:
        if nesting.depth or recorder.off:
            return run(*args, **kwargs)
        number = recorder.next_save()
        step = recorder.steps
        begin = recorder.open_stage("checkpoint_save")
        details: dict[str, Any] = {"part": "dcp.async_save", "save": number, "step": step, "pending": True}
        nesting.depth = 1
        try:
            response = run(*args, **kwargs)
        except BaseException as error:
            details["err"] = type(error).__name__
            raise
        finally:
            nesting.depth = 0
            _close_async(begin, details, kwargs)
        _follow(response, number, begin, kwargs)
        return response

    return async_save


def _close_async(begin: int, details: dict[str, Any], kwargs: dict[str, Any]) -> None:
    try:
        target = _dcp_target(kwargs, "storage_writer")
        path = identity_of(target).get("path")
        recorder.close_stage("checkpoint_save", begin, id={"path": path} if path else {}, **details)
    except Exception as error:  # noqa: BLE001 - the guard's rule
        guard.fault("async_save", error)


def _follow(response: Any, number: int, begin: int, kwargs: dict[str, Any]) -> None:
    """Write a commit record once the future says that the save is durable."""
    try:
        future = getattr(response, "upload_completion", response)
        future.add_done_callback(functools.partial(_committed, number, begin, kwargs))
    except Exception as error:  # noqa: BLE001 - the guard's rule
        guard.fault("async_save", error)


def _committed(number: int, begin: int, kwargs: dict[str, Any], future: Any) -> None:
    try:
        done = now()
        ok = future.exception() is None
        identity = identity_of(_dcp_target(kwargs, "storage_writer")) if ok else {}
        recorder.emit({"k": "commit", "t": done, "save": number, "ok": ok, "id": identity, "begin": begin})
    except Exception as error:  # noqa: BLE001 - the guard's rule
        guard.fault("commit", error)

"""Checkpoints saved and loaded: torch.save/load, DCP (also asynchronous), safetensors."""

from __future__ import annotations

from typing import Any

from ettrain.record.guard import guard
from ettrain.record.hooks import private
from ettrain.record.hooks.identity import identity_of
from ettrain.record.hooks.wrap import Args, Details, Kwargs, Parts, argument, nesting, passes, staged, wraps
from ettrain.record.recorder import now, recorder


def _saved(position: int, name: str, via: str) -> tuple[Details, Details]:
    """What is known before and after a save whose target is that argument."""

    def before(args: Args, kwargs: Kwargs) -> dict[str, Any]:
        recorder.about_to_save()
        return {"step": recorder.steps, "save": recorder.next_save(), "part": via}

    def after(args: Args, kwargs: Kwargs) -> dict[str, Any]:
        return {"id": identity_of(argument(args, kwargs, position, name))}

    return before, after


def _loaded(position: int, name: str, via: str) -> Details:
    def before(args: Args, kwargs: Kwargs) -> dict[str, Any]:
        return {"step": recorder.steps, "part": via, "id": identity_of(argument(args, kwargs, position, name))}

    return before


def on_serialization(module: Any) -> None:
    """torch.save(obj, f) and torch.load(f)."""
    before, after = _saved(1, "f", "torch.save")
    module.save = staged(module.save, "checkpoint_save", before=before, after=after)
    module.load = staged(module.load, "checkpoint_load", before=_loaded(0, "f", "torch.load"))


def on_safetensors(module: Any) -> None:
    """safetensors.torch.save_file(tensors, filename) and load_file(filename). `safe_open` is not seen."""
    before, after = _saved(1, "filename", "safetensors")
    module.save_file = staged(module.save_file, "checkpoint_save", before=before, after=after)
    module.load_file = staged(module.load_file, "checkpoint_load", before=_loaded(0, "filename", "safetensors"))


def on_dcp_load(module: Any) -> None:
    """torch.distributed.checkpoint.load."""

    def before(args: Args, kwargs: Kwargs) -> dict[str, Any]:
        return {"step": recorder.steps, "part": "dcp.load", "id": identity_of(_dcp_target(kwargs, "storage_reader"))}

    module.load = staged(module.load, "checkpoint_load", before=before)


def on_dcp_save(module: Any) -> None:
    """torch.distributed.checkpoint.save and async_save."""

    def before(args: Args, kwargs: Kwargs) -> dict[str, Any]:
        recorder.about_to_save()
        return {"step": recorder.steps, "save": recorder.next_save(), "part": "dcp.save"}

    def after(args: Args, kwargs: Kwargs) -> dict[str, Any]:
        return {"id": identity_of(_dcp_target(kwargs, "storage_writer"))}

    save = staged(module.save, "checkpoint_save", before=before, after=after)
    module.save = _whole(module.save, save)
    module.async_save = _async(module.async_save)


def on_dcp_process(module: Any) -> None:
    """DCP's background process joins a process group with the rank of its parent, but is no trainer."""
    found = private(module)
    if found is None:
        return
    run = found["_AsyncCheckpointProcess._checkpointing_subprocess"]

    @wraps(run)
    def _checkpointing_subprocess(*args: Any, **kwargs: Any) -> Any:
        recorder.leave()
        return run(*args, **kwargs)

    module._AsyncCheckpointProcess._checkpointing_subprocess = staticmethod(_checkpointing_subprocess)


def _dcp_target(kwargs: Kwargs, storage: str) -> Any:
    """The folder of a DCP call: `checkpoint_id`, else the storage's path."""
    target = kwargs.get("checkpoint_id")
    return getattr(kwargs.get(storage), "path", None) if target is None else target


def _whole(run: Any, save: Any) -> Any:
    """A save whose writer may call torch.save on threads of its own."""

    @wraps(run)
    def dcp_save(*args: Any, **kwargs: Any) -> Any:
        if passes():
            return run(*args, **kwargs)
        whole = object()
        Parts.under_way.add(whole)
        try:
            return save(*args, **kwargs)
        finally:
            Parts.under_way.discard(whole)

    return dcp_save


def _async(run: Any) -> Any:
    """An asynchronous save: the call blocks, a background thread or process writes, a future tells when it is durable."""

    @wraps(run)
    def async_save(*args: Any, **kwargs: Any) -> Any:
        if passes():
            return run(*args, **kwargs)
        call = _AsyncSave(_dcp_target(kwargs, "storage_writer"))
        nesting.depth = 1
        try:
            response = run(*args, **kwargs)
        except BaseException as error:
            call.returned(type(error).__name__)
            raise
        finally:
            nesting.depth = 0
        call.returned("")
        call.follow(response)
        return response

    return async_save


class _AsyncSave:
    """One asynchronous save, from its call to the commit."""

    def __init__(self, target: Any) -> None:
        Parts.under_way.add(self)
        self.target = target
        self.begin = self.number = self.step = 0
        try:
            self.number, self.step = recorder.next_save(), recorder.steps
            self.begin = recorder.open_stage("checkpoint_save")
        except Exception as error:  # noqa: BLE001 - the guard's rule
            guard.fault("async_save", error)

    def returned(self, error_name: str) -> None:
        """The call is over; the checkpoint is not durable yet."""
        if error_name:
            Parts.under_way.discard(self)
        if not self.begin:
            return
        try:
            path = identity_of(self.target).get("path")
            details: dict[str, Any] = {"part": "dcp.async_save", "save": self.number, "step": self.step, "pending": True}
            details["id"] = {"path": path} if path else {}
            if error_name:
                details["err"] = error_name
            recorder.close_stage("checkpoint_save", self.begin, **details)
        except Exception as error:  # noqa: BLE001 - the guard's rule
            guard.fault("async_save", error)

    def follow(self, response: Any) -> None:
        """Write a commit record once the future says that the save is durable."""
        try:
            future = getattr(response, "upload_completion", response)
            future.add_done_callback(self.committed)
        except Exception as error:  # noqa: BLE001 - the guard's rule
            Parts.under_way.discard(self)
            guard.fault("async_save", error)

    def committed(self, future: Any) -> None:
        """The background work is over, well or not."""
        Parts.under_way.discard(self)
        try:
            done = now()
            ok = future.exception() is None
            identity = identity_of(self.target) if ok else {}
            recorder.emit({"k": "commit", "t": done, "save": self.number, "ok": ok, "id": identity, "begin": self.begin})
        except Exception as error:  # noqa: BLE001 - the guard's rule
            guard.fault("async_save", error)

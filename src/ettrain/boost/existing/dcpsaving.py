"""`dcp.save` of an unmodified program, in the background.

The call copies the state to memory of the host; planning, writing and `.metadata`, which makes the checkpoint exist, are left to the thread
of `pending`, by torch's own function and over a process group of its own, so that they never mix with the training's collectives.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final

from torch import distributed

from ettrain import clock
from ettrain.boost.checkpoint import marks
from ettrain.boost.existing import sights
from ettrain.boost.existing.pending import Pending, Work, our_own
from ettrain.boost.existing.saving import pending as queue
from ettrain.record.guard import guard
from ettrain.record.hooks.wrap import passes, wraps
from ettrain.record.rank import is_loader_worker
from ettrain.record.recorder import recorder

PART: Final = "dcp.save"
PRIVATE: Final = ("_save_state_dict", "_storage_setup")
"""Names of torch.distributed.checkpoint.state_dict_saver; where one is missing, saves stay as they are."""
_TIMEOUT: Final = timedelta(minutes=10)


class DcpSaves:
    """The background saves of this process through DCP.

    Args:
        module: `torch.distributed.checkpoint.state_dict_saver`.
        pending: the queue.
    """

    def __init__(self, module: Any, pending: Pending) -> None:
        self._module, self._pending = module, pending
        self._group: Any = None
        self._stager: Any = None
        self._pid = os.getpid()
        self._staged = module.save
        self._plain = getattr(module.save, "__wrapped__", module.save)
        module.save = self._saving()

    def _saving(self) -> Callable[..., Any]:
        @wraps(self._staged)
        def save(state_dict: Any, **kwargs: Any) -> Any:
            if passes() or os.getpid() != self._pid or is_loader_worker():
                return self._plain(state_dict, **kwargs)
            self._pending.settle()
            writer = self._agreed(kwargs)
            if writer is None:
                return self._staged(state_dict, **kwargs)
            return self._later(state_dict, writer, kwargs)

        return save

    def _agreed(self, kwargs: Mapping[str, Any]) -> Any:
        """The writer, where this save can be done in the background on every rank; else None."""
        writer = None
        alone = kwargs.get("no_dist") or not distributed.is_available() or not distributed.is_initialized()
        try:
            with our_own():
                writer = self._writer(kwargs)
            if alone:
                if writer is not None:
                    warnings.warn(
                        "torch.distributed is disabled, unavailable or uninitialized, assuming the intent is to save in a single process.",
                        stacklevel=3,
                    )
                return writer
        except UserWarning:
            raise
        except Exception as error:  # noqa: BLE001 - the guard's rule
            guard.fault("dcp.save in the background", error)
            writer = None
        if kwargs.get("process_group") is not None:  # the same on all of its ranks
            return None
        with our_own():
            if self._group is None:
                self._group = distributed.new_group(backend="gloo", timeout=_TIMEOUT)
            able: list[Any] = [None] * distributed.get_world_size()
            distributed.all_gather_object(able, writer is not None, group=self._group)
        return writer if all(able) else None

    def _writer(self, kwargs: Mapping[str, Any]) -> Any:
        """torch's writer of plain files, for a folder that holds no checkpoint yet; None for anything else."""
        import torch.distributed.checkpoint as dcp

        writer, planner = kwargs.get("storage_writer"), kwargs.get("planner")
        if writer is not None and (type(writer) is not dcp.FileSystemWriter or getattr(writer, "thread_count", 0) != 1):
            return None
        if (planner is not None and type(planner) is not dcp.DefaultSavePlanner) or not kwargs.get("use_collectives", True):
            return None
        target = kwargs.get("checkpoint_id")
        if writer is None and (not isinstance(target, (str, os.PathLike)) or "://" in os.fspath(target)):
            return None
        writer = self._module._storage_setup(writer, target, reader=False)
        if type(writer) is not dcp.FileSystemWriter or os.path.exists(os.path.join(str(writer.path), ".metadata")):
            return None  # over a checkpoint that is there, a save that is cut off would destroy it
        return writer

    def _copy(self, state_dict: Mapping[str, Any]) -> Any:
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
        from torch.distributed.checkpoint.stateful import Stateful

        if self._stager is None:
            self._stager = DefaultStager(StagingOptions(False, False, False, False))
        return self._stager.stage(
            {name: value.state_dict() if isinstance(value, Stateful) else value for name, value in state_dict.items()}
        )

    def _later(self, state_dict: Any, writer: Any, kwargs: Mapping[str, Any]) -> Any:
        details = marks.numbered()
        begun = clock.monotonic_ns()
        path = sights.real(writer.path)
        with marks.blocked("checkpoint_save", part=PART, **details) as told:
            told["id"] = {"path": path}
            state = [self._copy(state_dict)]
        alone = bool(kwargs.get("no_dist")) or not (distributed.is_available() and distributed.is_initialized())
        result: list[Any] = []

        def run() -> None:
            result.append(
                self._module._save_state_dict(
                    state_dict=state.pop(), storage_writer=writer, process_group=self._group, no_dist=alone, planner=kwargs.get("planner")
                )
            )

        self._pending.add(
            Work(what=path, run=run, paths=(path,), result=path, save=details.get("save", 0), begun_ns=begun, step=recorder.steps)
        )
        return _later_metadata(self._pending, result)


def _later_metadata(pending: Pending, result: list[Any]) -> Any:
    """What `dcp.save` returns: the checkpoint's metadata, which is there once it is looked at."""
    from torch.distributed.checkpoint.metadata import Metadata

    class LaterMetadata(Metadata):  # type: ignore[misc]
        def __init__(self) -> None:
            pass

        def __getattribute__(self, name: str) -> Any:
            if name.startswith("__"):
                return object.__getattribute__(self, name)
            pending.settle()
            return getattr(result[0], name)

    return LaterMetadata()


def attach_asked(module: Any) -> None:
    """Called by `boost.entry` with `torch.distributed.checkpoint.state_dict_saver`."""
    missing = [name for name in PRIVATE if not hasattr(module, name)]
    if missing:
        guard.fault("--async-checkpoint", f"this torch has no {module.__name__}.{missing[0]}: dcp.save stays as it is")
        return
    DcpSaves(module, queue)

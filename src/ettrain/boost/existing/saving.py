"""`torch.save` of an unmodified program, in the background.

The call pickles the object as it always does and copies every tensor, since the program may change anything once it returns; writing
the file is left to the thread of `pending`, by torch's own writer.
"""

from __future__ import annotations

import atexit
import io
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from ettrain import clock
from ettrain.boost.checkpoint import marks
from ettrain.boost.existing import sights
from ettrain.boost.existing.archive import Kept, Slots
from ettrain.boost.existing.pending import Pending, Work, our_own
from ettrain.boost.existing.target import OpenFile, Target, target_of
from ettrain.record.guard import guard
from ettrain.record.hooks.wrap import passes, wraps
from ettrain.record.rank import is_loader_worker
from ettrain.record.recorder import recorder
from ettrain.settings import ENV_ASYNC_CHECKPOINT

PART: Final = "torch.save"
PRIVATE: Final = ("_open_zipfile_writer", "_serialization_tls")
"""Names of torch.serialization; where one is missing, saves stay as they are."""


class Saves:
    """The background saves of this process.

    Args:
        module: `torch.serialization`.
        pending: the queue.
    """

    def __init__(self, module: Any, pending: Pending) -> None:
        self._module, self.pending = module, pending
        self._slots = Slots()
        self._opener: Callable[[Any], Any] = module._open_zipfile_writer
        self._now = threading.local()
        self._pid = os.getpid()
        module._open_zipfile_writer = self._opened
        self._staged = module.save
        self._plain = getattr(module.save, "__wrapped__", module.save)
        module.save = self._saving()
        module.load = self._loading(module.load)

    def _opened(self, f: Any) -> Any:
        """In place of torch's function: what `torch.save` writes its archive with."""
        kept = getattr(self._now, "kept", None)
        self._now.kept = None
        return self._opener(f) if kept is None else kept

    def _saving(self) -> Callable[..., None]:
        @wraps(self._staged)
        def save(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
            if passes() or os.getpid() != self._pid or is_loader_worker():
                self._plain(obj, f, *args, **kwargs)
                return
            self.pending.tell()
            found = self._kept(f, args, kwargs)
            if found is None:
                if not isinstance(f, io.BytesIO):  # memory is no file that could appear too early
                    self.pending.settle()
                self._staged(obj, f, *args, **kwargs)
                return
            self._later(*found, partial(self._plain, obj, f, *args, **kwargs))

        return save

    def _kept(self, f: Any, args: Any, kwargs: Any) -> tuple[Target, Kept] | None:
        """Where it goes, and what stands in for torch's writer meanwhile; None where this save has to be written at once."""
        new_format = args[2] if len(args) > 2 else kwargs.get("_use_new_zipfile_serialization", True)
        if new_format is not True or self._module._serialization_tls.skip_data:
            return None
        if self.pending.active and self.pending.of_earlier_step(recorder.steps):
            self.pending.settle()
        if isinstance(f, (str, os.PathLike)) and self.pending.active and self.pending.concerns(sights.real(f)):
            self.pending.settle()
        target = None
        try:
            with our_own():
                target = target_of(f)
                return None if target is None else (target, Kept(self._slots, target.writer(self._opener), self.pending.wait))
        except Exception as error:  # noqa: BLE001 - the guard's rule
            guard.fault("torch.save in the background", error)
            if target is not None:
                target.drop()
            return None

    def _later(self, target: Target, kept: Kept, save: Callable[[], None]) -> None:
        details = marks.numbered()
        begun = clock.monotonic_ns()
        with marks.blocked("checkpoint_save", part=PART, **details) as told:
            told["id"] = {"path": target.path}
            self._now.kept = kept
            try:
                save()
                if kept.at_once:
                    with our_own():
                        kept.finish()
                        target.appear()
            except BaseException:
                kept.free()
                target.drop()
                raise
            finally:
                self._now.kept = None
        work = _work(target, kept, save=details.get("save", 0), begun_ns=begun)
        if kept.at_once:
            work.after()
            if work.save:
                marks.committed(work.save, begun, target.path)
            return
        self.pending.add(work)
        if isinstance(target, OpenFile):
            target.guard(self.pending.settle)

    def _loading(self, load: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(load)
        def waited(*args: Any, **kwargs: Any) -> Any:
            f = args[0] if args else kwargs.get("f")
            if os.getpid() != self._pid:
                return load(*args, **kwargs)
            if self.pending.active and isinstance(f, (str, os.PathLike)) and self.pending.concerns(sights.real(f)):
                self.pending.settle()
            elif self.pending.untold:
                self.pending.tell()
            return load(*args, **kwargs)

        return waited


def _work(target: Target, kept: Kept, *, save: int, begun_ns: int) -> Work:
    def run() -> None:
        kept.finish()
        target.appear()

    def after() -> None:
        kept.free()
        target.drop()

    path = target.path
    return Work(
        what=path, run=run, after=after, paths=(path,), result=path, save=save, begun_ns=begun_ns, step=recorder.steps, inode=target.inode
    )


pending = Pending()
"""This process's queue."""


def attach_asked(module: Any) -> None:
    """Called by `boost.entry` with `torch.serialization`."""
    if os.environ.get(ENV_ASYNC_CHECKPOINT) == "0":
        return
    missing = [name for name in PRIVATE if not hasattr(module, name)]
    if missing:
        guard.fault("--async-checkpoint", f"this torch has no {module.__name__}.{missing[0]}: saves stay as they are")
        return
    Saves(module, pending)
    sights.watch(pending)
    _at_end()


def _at_end() -> None:
    """The process does not end before its saves; a failure that the program was not told becomes its exit code."""
    pid = os.getpid()

    def finish() -> None:
        if os.getpid() == pid:
            pending.wait()

    def last() -> None:
        if os.getpid() != pid:
            return
        pending.wait()
        if pending.untold:
            for stream in (sys.stdout, sys.stderr):
                try:
                    stream.flush()
                except (OSError, ValueError, AttributeError):
                    continue
            os._exit(1)

    recorder.at_finish.append(finish)
    atexit.register(last)
    from multiprocessing import process, util

    if process.parent_process() is not None:
        util.Finalize(None, last, exitpriority=50)

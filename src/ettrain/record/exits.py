"""How the process ends: exceptions, exit, fork. Chains to whatever hooks are there and never installs a signal handler,
since frameworks look at those to decide what they may do."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from types import TracebackType
from typing import Any

from ettrain.record.guard import guard
from ettrain.record.recorder import Recorder, now, rank_of_environment
from ettrain.settings import ENV_SUPERVISOR


class _Exits:
    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.seen: BaseException | None = None
        self.finished = False
        self.before = sys.excepthook
        self.before_thread = threading.excepthook

    def excepthook(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self.seen = error
        self.record(error, "main")
        self.before(kind, error, trace)

    def threadhook(self, arguments: Any) -> None:
        if arguments.exc_value is not None:
            self.record(arguments.exc_value, "thread")
        self.before_thread(arguments)

    def record(self, error: BaseException, how: str) -> None:
        try:
            if str(os.getppid()) == os.environ.get(ENV_SUPERVISOR) or rank_of_environment()[0] is not None:
                self.recorder.promote()
            self.recorder.emit({"k": "exc", "t": now(), "how": how, **describe(error)})
        except Exception as fault:  # noqa: BLE001 - the guard's rule
            guard.fault("exception not recorded", fault)

    def finish(self) -> None:
        if self.finished:
            return
        self.finished = True
        try:
            last = getattr(sys, "last_value", None)
            if last is not None and last is not self.seen:
                self.record(last, "main")
            self.recorder.finish()
        except Exception as fault:  # noqa: BLE001 - the guard's rule
            guard.fault("exit not recorded", fault)

    def register_again(self) -> None:
        """Exit handlers run last in, first out: registered late, ours runs close to the program's last line."""
        atexit.register(self.finish)

    def in_child(self) -> None:
        self.finished = False
        self.recorder.reset()


def describe(error: BaseException) -> dict[str, str]:
    """Type, message and trace of an exception, each cut to what a journal line holds."""
    import traceback

    try:
        message = str(error)[:1500]
    except Exception:  # noqa: BLE001 - a foreign __str__ may raise anything
        message = ""
    frames = traceback.extract_tb(error.__traceback__)[-8:]
    trace = "\n".join(f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in frames)
    return {"type": type(error).__name__, "message": message, "trace": trace[-1500:]}


def install(recorder: Recorder) -> None:
    """Watch for the end of this process."""
    exits = _Exits(recorder)
    sys.excepthook = exits.excepthook
    threading.excepthook = exits.threadhook
    atexit.register(exits.finish)
    recorder.on_first_step = exits.register_again
    os.register_at_fork(after_in_child=exits.in_child)
    if _is_multiprocessing_child():
        from multiprocessing.util import Finalize

        Finalize(None, exits.finish, exitpriority=100)


def _is_multiprocessing_child() -> bool:
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None

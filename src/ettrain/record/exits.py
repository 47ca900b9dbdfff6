"""How the process ends: exceptions, exit, fork.

Chains to whatever hooks are there and never installs a signal handler, since frameworks look at those to decide what they may do.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections import deque
from types import TracebackType
from typing import Any

from ettrain.record.guard import guard
from ettrain.record.rank import rank_of_environment
from ettrain.record.recorder import Recorder, now
from ettrain.settings import ENV_SUPERVISOR


class _Exits:
    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.seen: BaseException | None = None
        boot: Any = sys.modules.get("_ettrain_boot")
        early = getattr(boot, "failed", None)
        self.before = boot.before if early is not None and sys.excepthook is early else sys.excepthook
        self.before_thread = threading.excepthook

    def excepthook(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self.record(error, "main")
        self.before(kind, error, trace)

    def threadhook(self, arguments: Any) -> None:
        if arguments.exc_value is not None:
            self.record(arguments.exc_value, "thread")
        self.before_thread(arguments)

    def record(self, error: BaseException, how: str) -> None:
        """Write down an exception that leaves the program, once."""
        try:
            if error is self.seen:
                return
            self.seen = error
            if str(os.getppid()) == os.environ.get(ENV_SUPERVISOR) or rank_of_environment()[0] is not None:
                self.recorder.promote()
            self.recorder.emit({"k": "exc", "t": now(), "how": how, **describe(error)})
        except Exception as fault:  # noqa: BLE001 - the guard's rule
            guard.fault("exception not recorded", fault)

    def finish(self) -> None:
        """The interpreter's exit handlers run."""
        try:
            last = getattr(sys, "last_value", None)
            if isinstance(last, BaseException) and not self.recorder.ended:
                self.record(last, "main")
            self.recorder.finish()
        except Exception as fault:  # noqa: BLE001 - the guard's rule
            guard.fault("exit not recorded", fault)

    def finish_child(self) -> None:
        """A child of multiprocessing ends: it runs no exit handlers, and its exceptions pass no excepthook."""
        error = sys.exc_info()[1]
        if isinstance(error, SystemExit):
            error = error.__context__ if error.code not in (None, 0) else None
        if error is not None and not isinstance(error, SystemExit):
            self.record(error, "main")
        self.finish()

    def register_again(self) -> None:
        """Exit handlers run last in, first out: registered late, ours runs close to the program's last line."""
        atexit.register(self.finish)

    def in_child(self) -> None:
        """The process was forked, and this is the child."""
        try:
            self.seen = None
            self.recorder.in_child()
        except Exception as fault:  # noqa: BLE001 - the guard's rule
            guard.fault("fork", fault)


def describe(error: BaseException) -> dict[str, str]:
    """Type, message and trace of an exception, each cut to what a journal line holds.

    Nothing is imported here: a module that evaluates text while it loads, as `traceback` does, makes Python forget that it was
    an interrupt, and end with another exit code.
    """
    try:
        message = str(error)[:1500]
    except Exception:  # noqa: BLE001 - a foreign __str__ may raise anything
        message = ""
    frames: deque[str] = deque(maxlen=8)
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        frames.append(f"{code.co_filename}:{trace.tb_lineno} in {code.co_name}")
        trace = trace.tb_next
    return {"type": type(error).__name__, "message": message, "trace": "\n".join(frames)[-1500:]}


_installed: list[_Exits] = []


def install(recorder: Recorder) -> None:
    """Watch for the end of this process; once."""
    if _installed:
        return
    exits = _Exits(recorder)
    _installed.append(exits)
    sys.excepthook = exits.excepthook
    threading.excepthook = exits.threadhook
    atexit.register(exits.finish)
    recorder.on_first_step = exits.register_again
    os.register_at_fork(after_in_child=exits.in_child)
    from multiprocessing import process, util

    util.register_after_fork(exits, _watch_child)
    if process.parent_process() is not None:
        _watch_child(exits)


def _watch_child(exits: _Exits) -> None:
    """Called in every child of multiprocessing once it has forgotten its parent's finalizers."""
    from multiprocessing.util import Finalize

    Finalize(None, exits.finish_child, exitpriority=100)


def failed(error: BaseException) -> None:
    """An exception leaves the program before it ever imported torch."""
    for exits in _installed:
        exits.record(error, "main")

"""A stage in another process, seen from inside: take the function and its arguments, call it, send back what comes of it.

A fresh interpreter, no fork: the parent has threads. It ends with its parent: when that goes, so does the pipe that is its input.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import traceback
from multiprocessing import spawn
from typing import Any, BinaryIO


def serve(answer: int) -> None:
    """Read one call from standard input, answer on descriptor `answer`.

    The answer is (True, result) or (False, exception or None, its traceback as text), pickled.
    """
    source: BinaryIO = sys.stdin.buffer
    with os.fdopen(answer, "wb") as target:
        target.write(_answer(source))
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(0)  # as multiprocessing's children end: no exit handlers of the program's


def _answer(source: BinaryIO) -> bytes:
    try:
        spawn.prepare(pickle.load(source))  # noqa: S301 - our own parent's
        call, arguments = pickle.load(source)  # noqa: S301 - our own parent's
        threading.Thread(target=_end_with_parent, args=(source.fileno(),), daemon=True).start()
        return pickle.dumps((True, call(**arguments)))
    except BaseException as error:  # noqa: BLE001 - it is raised in the parent
        return _failed(error)


def _end_with_parent(source: int) -> None:
    while os.read(source, 1):
        pass
    os._exit(1)


def _failed(error: BaseException) -> bytes:
    text = "".join(traceback.format_exception(error))
    portable: Any = error
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    except Exception:  # noqa: BLE001 - an exception with arguments of its own may not survive the way
        portable = None
    return pickle.dumps((False, portable, text))

"""`--explain-startup`: sample the main thread's stack until the first step, so that set-up time has the names of what ran.

Opt-in, since it starts a thread. It says what ran, not why.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Final

from ettrain import clock
from ettrain.record.guard import guard
from ettrain.record.recorder import Recorder, now

PERIOD_S: Final = 0.02
_OWN: Final = ("ettrain", "importlib", "threading", "runpy")


def explain(recorder: Recorder) -> None:
    """Start sampling; ends by itself at the first step."""
    main = threading.main_thread().ident
    if main is not None:
        threading.Thread(target=_sample, args=(recorder, main), name="ettrain-startup", daemon=True).start()


def _sample(recorder: Recorder, main: int) -> None:
    try:
        begin = last = now()
        label = ""
        while recorder.steps == 0:
            clock.sleep_s(PERIOD_S)
            frame = sys._current_frames().get(main)
            current = where(frame) if frame is not None else ""
            del frame
            if current != label:
                _write(recorder, label, begin, last)
                label, begin = current, last
            last = now()
        _write(recorder, label, begin, last)
    except Exception as error:  # noqa: BLE001 - the guard's rule
        guard.fault("explain startup", error)


def _write(recorder: Recorder, label: str, begin: int, end: int) -> None:
    if label and end > begin:
        recorder.emit({"k": "span", "t": begin, "name": "setup", "end": end, "by": "found", "part": label})


def where(frame: FrameType | None) -> str:
    """Name of what runs: the program's outermost function below its module level, or the library that the module calls."""
    outermost: list[str] = []
    while frame is not None:
        module = str(frame.f_globals.get("__name__", "?"))
        if not module.startswith(_OWN):
            name = frame.f_code.co_name
            outermost.append(f"line {frame.f_lineno}" if name == "<module>" and module == "__main__" else f"{module}.{name}")
        frame = frame.f_back
    outermost.reverse()
    named = [entry for entry in outermost if not entry.startswith("line ")]
    line = next((entry for entry in outermost if entry.startswith("line ")), "")
    if not named:
        return line
    return f"{named[0].removeprefix('__main__.')} ({line})" if line else named[0]

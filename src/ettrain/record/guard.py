"""The one place where a fault of the recorder's own ends: it is told once on stderr, counted, and the training goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable


class Guard:
    """Counts faults. `on_fault` is told of each (where, error text, count); what it raises is swallowed."""

    def __init__(self) -> None:
        self.on_fault: Callable[[str, str, int], None] | None = None
        self.reset()

    def reset(self) -> None:
        """As new, in a forked child."""
        self.count = 0
        self._said = False

    def fault(self, where: str, error: BaseException | str) -> None:
        """Take note of a fault. Raises nothing but `error` itself, where a signal handler of the program's raised it."""
        if isinstance(error, BaseException) and _is_the_programs(error):
            raise error
        self.count += 1
        try:
            text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
            text = " ".join(text[:500].split())
            if not self._said:
                self._said = True
                sys.stderr.write(f"ettrain: {where}: {text} (training goes on; further faults are counted, not shown)\n")
            if self.on_fault is not None:
                self.on_fault(where, text, self.count)
        except Exception:  # noqa: BLE001 - the guard is where every other rule ends: nothing may get past it
            pass


def _is_the_programs(error: BaseException) -> bool:
    """Whether a signal handler of the program's raised it: Python runs those between any two instructions, ours as well."""
    signal = sys.modules.get("signal")
    if signal is None or error.__traceback__ is None:
        return False
    codes = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    trace = error.__traceback__ if codes else None
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def _code_of(handler: object) -> object:
    function = getattr(handler, "func", handler)
    return getattr(function, "__code__", None) or getattr(getattr(function, "__call__", None), "__code__", None)  # noqa: B004


guard = Guard()
"""The process's guard."""

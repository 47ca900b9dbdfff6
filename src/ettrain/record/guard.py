"""The one place where a fault of the recorder's own ends: it is told once on stderr, counted, and the training goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable


class Guard:
    """Counts faults. `on_fault` is told of each (where, error text, count); what it raises is swallowed."""

    def __init__(self) -> None:
        self.count = 0
        self.on_fault: Callable[[str, str, int], None] | None = None
        self._said = False

    def fault(self, where: str, error: BaseException | str) -> None:
        """Take note of a fault. Never raises."""
        self.count += 1
        try:
            text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
            text = text[:500]
            if not self._said:
                self._said = True
                sys.stderr.write(f"ettrain: {where}: {text} (training goes on; further faults are counted, not shown)\n")
            if self.on_fault is not None and (self.count & (self.count - 1)) == 0:
                self.on_fault(where, text, self.count)
        except Exception:  # noqa: BLE001, S110 - the guard is where every other rule ends: nothing may get past it
            pass


guard = Guard()
"""The process's guard."""

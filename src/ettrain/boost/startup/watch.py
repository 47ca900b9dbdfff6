"""Draws from the global random generators by stages that had not said that they draw.

The generators belong to the process, so stages that overlap share them. One that draws from them is declared `rng=True`: such stages run
one after another as declared, so each gets the numbers that it would get if nothing overlapped. A stage that draws without saying so is
found by comparing states, and named.
"""

from __future__ import annotations

from ettrain.boost.generators import moved, take
from ettrain.boost.startup.graph import PROCESS, Stage


class Watch:
    """Notices draws by stages that are not declared `rng=True`. Told of each begin and end, under one lock."""

    __slots__ = ("_any_declared", "_running", "_state", "suspects")

    def __init__(self) -> None:
        self._running: dict[str, bool] = {}
        self._any_declared = False
        self._state = take(with_devices=False)
        self.suspects: list[str] = []
        """Stages that ran when a global generator moved, and none of them had said that it draws."""

    def begins(self, stage: Stage) -> None:
        """A stage begins."""
        self._look()
        if stage.lane != PROCESS:
            self._running[stage.name] = stage.rng
            self._any_declared |= stage.rng

    def ends(self, stage: Stage) -> None:
        """A stage ended."""
        self._look()
        self._running.pop(stage.name, None)

    def _look(self) -> None:
        state = take(with_devices=False)
        if moved(self._state, state) and not any(self._running.values()):
            self.suspects += [name for name in self._running if name not in self.suspects]
        self._state = state

    def advice(self) -> str:
        """What to tell the user; '' where one stage alone draws, which is the same on every run."""
        if not self.suspects or (len(self.suspects) == 1 and not self._any_declared):
            return ""
        shared = "from the global random generators, which overlapping stages share: their numbers may differ from run to run"
        if len(self.suspects) == 1:
            return f"stage '{self.suspects[0]}' draws {shared}. Declare it with rng=True, or give it a generator of its own."
        names = ", ".join(f"'{name}'" for name in self.suspects)
        return (
            f"one or more of the stages {names} draw {shared}. Declare those that do with rng=True (ETT_STARTUP_SEQUENTIAL=1 tells "
            "which they are), or give them generators of their own."
        )

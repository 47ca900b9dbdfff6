"""The global random generators: Python's, numpy's and torch's. They belong to the process, so stages that overlap share them.

A stage that draws from them is declared `rng=True`: such stages run one after another as declared, so each gets the numbers that it
would get if nothing overlapped. A stage that draws without saying so is found by comparing states, and named.
"""

from __future__ import annotations

import sys
from typing import Any

from ettrain.boost.startup.graph import PROCESS, Stage

State = dict[str, Any]


def take(*, with_devices: bool = True) -> State:
    """The state of every global generator that is loaded."""
    state: State = {}
    random: Any = sys.modules.get("random")
    if random is not None and hasattr(random, "getstate"):
        state["random"] = random.getstate()
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is not None and hasattr(numpy, "get_state"):
        state["numpy.random"] = numpy.get_state(legacy=True)
    torch: Any = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_rng_state"):
        state["torch"] = torch.get_rng_state()
        if with_devices and torch.cuda.is_initialized():
            state["torch.cuda"] = torch.cuda.get_rng_state_all()
    return state


def put_back(state: State) -> None:
    """Set every generator in `state` to it."""
    if "random" in state:
        sys.modules["random"].setstate(state["random"])
    if "numpy.random" in state:
        sys.modules["numpy.random"].set_state(state["numpy.random"])
    torch: Any = sys.modules.get("torch")
    if "torch" in state:
        torch.set_rng_state(state["torch"])
    if "torch.cuda" in state:
        torch.cuda.set_rng_state_all(state["torch.cuda"])


def moved(before: State, after: State) -> list[str]:
    """Names of the generators that were drawn from or seeded in between; one that was loaded in between counts as still."""
    return [name for name, state in before.items() if name in after and not _same(state, after[name])]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    if hasattr(one, "shape"):
        return bool(one.shape == other.shape and (one == other).all())
    return bool(one == other)


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
        names = ", ".join(f"'{name}'" for name in self.suspects)
        which = f"stage {names} draws" if len(self.suspects) == 1 else f"one or more of the stages {names} draw"
        return (
            f"{which} from the global random generators, which overlapping stages share: their numbers may differ from run to run. "
            "Declare those that draw with rng=True (ETT_STARTUP_SEQUENTIAL=1 tells which they are), or give them generators of their own."
        )

"""When an optimizer call is a new step: the rule of docs/accounting.md, on plain integers.

A step is counted when an optimizer steps that has already stepped in the current iteration, or a never-seen one after a new
batch; never without a backward or a batch since the last count. So a GAN's two optimizers, TorchRec's fused and dense ones, an
optimizer per parameter in backward, and a subclass that calls `super().step()` all count one step per iteration.
"""

from __future__ import annotations


class StepRule:
    """State of the rule for one process."""

    __slots__ = ("_activity_then", "_batches_then", "_iteration", "activity", "batches", "calls", "seen")

    def __init__(self) -> None:
        self.activity = 0
        """Backward calls and batches so far."""
        self.batches = 0
        self.calls = 0
        self._activity_then = -1
        self._batches_then = -1
        self._iteration = 1
        self.seen: dict[int, int] = {}
        """Optimizer -> the iteration in which it stepped last."""

    def optimizer_called(self, key: int) -> bool:
        """Take an optimizer's call (`key`: its identity); True if it begins a new step count."""
        self.calls += 1
        seen = self.seen
        iteration = self._iteration
        activity = self.activity
        last = seen.get(key, 0)
        if activity == self._activity_then and activity:
            new = False
        else:
            new = last == iteration or self._activity_then < 0 or (last == 0 and self.batches != self._batches_then)
        if not new:
            seen[key] = iteration
            return False
        self._iteration = seen[key] = iteration + 1
        self._activity_then = activity
        self._batches_then = self.batches
        return True

"""Where the data stand, to go with the parameters as they are: also while a batch is out that was not trained yet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from ettrain.boost import generators
from ettrain.boost.feed import Feed

SAMPLE: Final = 8
"""Parameters that are looked at to see whether a step was made."""


class Place:
    """The place between two steps, and whether the training has gone past it.

    Args:
        params: of the model.
    """

    def __init__(self, params: Iterable[Any]) -> None:
        self.batch_out = False
        """Whether the loop was given a batch and has not come back for the next one."""
        self.optimized = False
        """Whether an optimizer stepped since `between_steps`."""
        self._sample = [param for param in params if param.requires_grad][:SAMPLE]
        self._versions: list[int] = []
        self._kept: tuple[Any, Any] = (None, {})

    def between_steps(self, feed: Feed[Any]) -> None:
        """All that was given out was trained, and nothing else: keep that, for a save before the next batch is. Microseconds.

        The generators are not kept: reading all of them takes longer than a short step, and waits for a device.
        """
        self.batch_out = self.optimized = False
        self._versions = [param._version for param in self._sample]
        self._kept = (feed.state(), feed.summary())

    def trained_more(self) -> bool:
        """Whether a batch is out and was trained. A compiled step calls no hook; it is known by the parameters that it changed."""
        return self.batch_out and (self.optimized or self._versions != [param._version for param in self._sample])

    def now(self, feed: Feed[Any] | None) -> dict[str, Any]:
        """Generators and position, in values that load without running code."""
        return {"random": generators.as_plain(generators.take()), "data": self._of(feed)[0]}

    def summary(self, feed: Feed[Any] | None) -> dict[str, Any]:
        """The position for people."""
        told: dict[str, Any] = self._of(feed)[1]
        return told

    def _of(self, feed: Feed[Any] | None) -> tuple[Any, Any]:
        if feed is None:
            return None, {}
        return self._kept if self.batch_out and not self.trained_more() else (feed.state(), feed.summary())

"""When all ranks save: rank 0 decides, the others hear it at the same step, about once a second.

What every rank knows by itself (every so many steps) needs no word. What depends on a clock or on a signal that reached one rank does:
at the boundary of an agreed step rank 0 says whether all save now, and at which step it will say so again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ettrain.boost.checkpoint.ranks import Ranks

_EVERY_NS: Final = 1_000_000_000
_KEPT: Final = 16
"""Words that stay for ranks that are behind."""


@dataclass(frozen=True, slots=True)
class Word:
    """What holds for all ranks at one step."""

    save: bool = False
    stop: bool = False
    """Save, and then end."""
    then: int = 0
    """The step of the next word."""


class Agreement:
    """The ranks' common decision, step by step.

    Args:
        ranks: who takes part.
        timeout: seconds that a rank waits for rank 0.
    """

    def __init__(self, ranks: Ranks, timeout: float) -> None:
        self._ranks, self._notes, self._timeout = ranks, ranks.main, timeout
        self._at = -1
        self._said_ns = 0
        self._said_step = 0
        self._stop_told = False
        self._words: deque[str] = deque()

    def word(self, step: int, now_ns: int, *, due: Callable[[], bool], stop: bool) -> Word:
        """What holds at the boundary after `step` steps.

        Args:
            step: steps done; the same sequence on every rank.
            now_ns: this rank's monotonic clock.
            due: whether a save is due, asked on rank 0.
            stop: whether this rank was told to end.

        Raises:
            CheckpointSaveError: rank 0 is gone or does not answer.
        """
        if self._ranks.world == 1:
            return Word(save=due(), stop=stop)
        if stop and not self._stop_told:
            self._notes.put("stop", True)
            self._stop_told = True
        if self._at < 0:
            self._at, self._said_ns, self._said_step = step + 1, now_ns, step
        if step != self._at:
            return Word()
        if self._ranks.rank != 0:
            word: Word = self._notes.take(f"word/{step}", self._timeout)
        else:
            per_step = max(1, (now_ns - self._said_ns) // max(1, step - self._said_step))
            word = Word(save=due(), stop=stop or self._notes.there("stop"), then=step + max(1, _EVERY_NS // per_step))
            self._notes.put(f"word/{step}", word)
            self._words.append(f"word/{step}")
            if len(self._words) > _KEPT:
                self._notes.forget([self._words.popleft()])
            self._said_ns, self._said_step = now_ns, step
        self._at = word.then
        return word

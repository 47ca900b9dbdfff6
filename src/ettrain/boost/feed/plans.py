"""The indices of each batch of one rank, from the position on: what the loader's twin asks for, in place of the program's sampler.

A plan hands out indices ahead of the training, since workers fetch ahead; the position moves only when `handed` says that the training got
a batch. `OrderPlan` knows the order of the whole epoch, `StatePlan` a sampler that keeps its own state.
"""

from __future__ import annotations

import copy
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

from torch.utils.data import BatchSampler

from ettrain.boost.feed.blocks import KEEP, Tail, cut
from ettrain.boost.feed.orders import Order, Recipe, Units, change, draw, draw_again
from ettrain.errors import UsageError

NOBODYS: Final[list[Any]] = []
"""An empty batch, by which a worker is passed over; known by its identity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What part of an order a rank trains."""

    rank: int = 0
    """Its number among those that share the order."""
    world: int = 1
    """How many share the order; 1: this rank has the order for itself."""
    batch: int | None = 1
    """Samples per batch; None: single samples, not in a batch."""
    tail: Tail = KEEP
    """What becomes of an incomplete block."""
    whole: bool = False
    """The order's entries are whole batches."""
    shared: bool = False
    """All ranks have the same order, so their number may change within an epoch."""


class Plan(Protocol):
    """What yields the indices of the batches, and knows which of them were handed out."""

    shared: bool
    """Whether all ranks follow one order."""

    def prepare(self, epoch: int, *, skips: int, before: Callable[[], None]) -> None:
        """Go on from the position when iterated next; first come `skips` empty batches, then `before` is called, then a sampler is asked."""

    def __iter__(self) -> Iterator[Any]: ...

    def handed(self) -> int:
        """The next batch in turn was handed out; returns its number of samples, 0 where that is not known."""

    def spent(self) -> bool:
        """Whether nothing of the epoch is left, as far as that is known without asking a sampler."""

    def finish(self) -> None:
        """The epoch is over."""

    def state(self) -> dict[str, Any]:
        """The position."""

    def load(self, state: dict[str, Any]) -> str | None:
        """Go on from this position; returns what a person should know about it."""

    def told(self) -> dict[str, Any]:
        """The position for people."""


class OrderPlan:
    """An order known as a whole, cut into blocks with one batch for each rank."""

    def __init__(self, sampler: Any, size: int, share: Share, seed: int | None) -> None:
        self._sampler = sampler
        self._size = size
        self._share = share
        self.shared = share.shared
        self._seed = seed
        self._epoch = 0
        self._skips = 0
        self._before: Callable[[], None] = _nothing
        self._ahead: deque[tuple[int, int]] = deque()
        self._forget()
        self._lead: list[Any] = []
        """Samples of the epoch before that were too few to give each rank one."""

    def _forget(self) -> None:
        self._done = 0
        self._order: Order | None = None
        self._recipe: Recipe | None = None
        self._units: Units = ()

    def prepare(self, epoch: int, *, skips: int, before: Callable[[], None]) -> None:
        """See `Plan`."""
        self._epoch, self._skips, self._before = epoch, skips, before
        self._ahead.clear()

    def __iter__(self) -> Iterator[Any]:
        """A generator, so that its draws come when the program's own sampler would draw: at the first index."""
        for _ in range(self._skips):
            yield NOBODYS
        self._before()
        self._look_up()
        units, share, at = self._units, self._share, self._done
        while size := self._cut(len(units) - at):
            mine = units[at + share.rank : at + size : share.world]
            at += size
            self._ahead.append((at, len(mine[0]) if share.whole and hasattr(mine[0], "__len__") else len(mine)))
            yield mine[0] if share.whole or share.batch is None else list(mine)

    def _cut(self, left: int) -> int:
        share = self._share
        return cut(left, world=share.world, batch=share.batch or 1, tail=share.tail, growing=share.batch is not None)

    def _look_up(self) -> None:
        if self._order is not None:
            return
        share = self._share
        if self._recipe is None:
            order = draw(self._sampler, self._size, seed=self._seed, epoch=self._epoch, shared=share.shared and share.world > 1)
        else:
            order = draw_again(self._recipe, self._sampler)
        self._order, self._recipe = order, order.recipe
        self._units = _joined(self._lead, order.units) if self._lead else order.units

    def handed(self) -> int:
        """See `Plan`."""
        self._done, count = self._ahead.popleft()
        return count

    def spent(self) -> bool:
        """See `Plan`."""
        return self._recipe is not None and not self._cut(len(self._lead) + self._recipe["count"] - self._done)

    def finish(self) -> None:
        """See `Plan`."""
        left: list[Any] = []
        if self._recipe is not None and self._share.tail == KEEP and self._done < len(self._lead) + self._recipe["count"]:
            self._look_up()
            left = list(self._units[self._done :])
        self._forget()
        self._lead = left

    def state(self) -> dict[str, Any]:
        """See `Plan`."""
        return {"done": self._done, "lead": self._lead, "order": self._recipe, "shared": self._share.shared}

    def load(self, state: dict[str, Any]) -> str | None:
        """See `Plan`. The order that was begun is finished, whatever the loader's sampler is by now."""
        recipe = state["order"]
        if recipe is not None and recipe["size"] != self._size:
            raise UsageError(
                f"follow: the dataset has {self._size} samples, and had {recipe['size']} when the checkpoint was written in the middle of an epoch. "
                "Resume with the dataset as it was; between two epochs it may change."
            )
        self._forget()
        self._done, self._lead, self._recipe = state["done"], list(state["lead"]), recipe
        return None if recipe is None else change(recipe, self._sampler, self._seed)

    def told(self) -> dict[str, Any]:
        """See `Plan`."""
        told: dict[str, Any] = {"samples": self._done} if not self._share.whole else {}
        if self._recipe is not None and not self._share.whole:
            told["of"] = len(self._lead) + self._recipe["count"]
        padding = -self._size % self._share.world
        if padding and self._share.tail == KEEP:
            told["padding_left_out"] = padding
        if self._lead:
            told["from_epoch_before"] = len(self._lead)
        return told


class StatePlan:
    """A sampler, or batch sampler, with `state_dict` and `load_state_dict` of its own."""

    def __init__(self, sampler: Any, share: Share, *, drop_last: bool) -> None:
        self.shared = False
        self._sampler = sampler
        self._batched = None if share.whole else share.batch
        self._indices = sampler if self._batched is None else BatchSampler(sampler, self._batched, drop_last)
        self._single = share.batch is None and not share.whole
        self._skips = 0
        self._before: Callable[[], None] = _nothing
        self._ahead: deque[tuple[Any, int]] = deque()
        self._last: Any = None
        self._inside = False
        """Whether `_last` is to be gone on with, and not where the sampler stands by itself."""
        self._loaded = True
        """Whether the sampler knows of `_last`."""
        self._ended = False
        """Whether the sampler had met its end before `_last` was taken."""

    def prepare(self, epoch: int, *, skips: int, before: Callable[[], None]) -> None:
        """See `Plan`."""
        self._skips, self._before = skips, before
        self._ahead.clear()

    def __iter__(self) -> Iterator[Any]:
        """See `Plan`."""
        for _ in range(self._skips):
            yield NOBODYS
        self._before()
        if self._inside:
            self._sampler.load_state_dict(copy.deepcopy(self._last))
            self._loaded = True
        for indices in self._indices:
            count = 1 if self._single else len(indices) if hasattr(indices, "__len__") else 0
            self._ahead.append((copy.deepcopy(self._sampler.state_dict()), count))
            yield indices

    def handed(self) -> int:
        """See `Plan`."""
        self._last, count = self._ahead.popleft()
        self._inside = True
        self._ended = self._batched is not None and count < self._batched
        return count

    def spent(self) -> bool:
        """See `Plan`."""
        return self._ended

    def finish(self) -> None:
        """See `Plan`. After a batch that was not full, the sampler had put itself back to its start, as far as it does."""
        if not self._ended:
            self._last = copy.deepcopy(self._sampler.state_dict())
        self._inside, self._ended = not self._loaded, False

    def state(self) -> dict[str, Any]:
        """See `Plan`."""
        return {"sampler": self._last, "ended": self._ended, "shared": False}

    def load(self, state: dict[str, Any]) -> str | None:
        """See `Plan`."""
        self._last, self._ended = state["sampler"], state["ended"]
        self._inside = self._last is not None
        self._loaded = not self._inside
        return None

    def told(self) -> dict[str, Any]:
        """See `Plan`."""
        return {}


def _nothing() -> None:
    pass


def _joined(lead: list[Any], units: Units) -> Units:
    if isinstance(units, list):
        return [*lead, *units]
    return array("q", [*lead, *units])

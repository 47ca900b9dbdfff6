"""An iterable dataset in a fixed number of pieces, dealt out to however many ranks and workers there are.

The dataset has `pieces`, their number, and `piece(number)`, which makes one: an iterable with a state, as any followed iterable dataset. Since each
piece knows where it stands, the unfinished ones can be dealt out anew in the middle of an epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import get_worker_info

from ettrain.boost.feed.streams import NOTHING, Luggage, Stream

Dealt = dict[int, Luggage]
"""State of each piece that was begun, by number."""


def is_in_pieces(dataset: Any) -> bool:
    """Whether it is a dataset of this kind."""
    return isinstance(getattr(dataset, "pieces", None), int) and callable(getattr(dataset, "piece", None))


def merged(base: Dealt, streams: Iterable[Luggage]) -> Dealt:
    """The states of all pieces: as they were when they were dealt out, or later ones of those who had them."""
    states = dict(base)
    for stream in streams:
        states |= stream.get("pieces", {})
    return states


class Pieces(Stream):
    """The dataset in one place where it is iterated over: the pieces that fell to it, one after the other."""

    def __init__(self, dataset: Any, *, rank: int, world: int) -> None:
        super().__init__(dataset)
        self._ett_rank, self._ett_world = rank, world
        self._ett_states: Dealt = {}
        self._ett_current: tuple[int, Stream] | None = None

    def _ett_state(self) -> Luggage:
        states = dict(self._ett_states)
        if self._ett_current is not None:
            number, piece = self._ett_current
            states[number] = piece._ett_state()
        return {"pieces": states}

    def __iter__(self) -> Iterator[Any]:
        """The samples of the pieces that fall to this place and are not finished."""
        luggage, anew, skipped = self._ett_next or ({}, True, 0)
        self._ett_next = None
        base: Dealt = luggage.get("base", {})
        self._ett_states = {} if anew else dict(luggage.get("pieces", {}))
        self._ett_current = None
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        open_ones = [number for number in range(self._ett_dataset.pieces) if not _ended(base.get(number))]
        mine = open_ones[worker * self._ett_world + self._ett_rank :: workers * self._ett_world]
        return self._ett_of(mine, base, skipped)

    def _ett_of(self, numbers: list[int], base: Dealt, skipped: int) -> Iterator[Any]:
        for _ in range(skipped):
            yield NOTHING
        for number in numbers:
            state = self._ett_states.get(number, base.get(number))
            if _ended(state):
                continue
            piece = Stream(self._ett_dataset.piece(number))
            if state is not None:
                piece._ett_go_on(state, anew=False)
            self._ett_current = (number, piece)
            yield from piece
            self._ett_current = None
            self._ett_states[number] = {"at": "end"}


def _ended(state: Luggage | None) -> bool:
    return state is not None and state["at"] == "end"

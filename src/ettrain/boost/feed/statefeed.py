"""The feed of a loader that is no DataLoader of torch's and tells its own position, by `state_dict` and `load_state_dict`."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

from ettrain.boost.feed.feed import Feed
from ettrain.boost.feed.ranks import State, own_state_of
from ettrain.errors import UsageError

T = TypeVar("T")


class StateFeed(Feed[T], Generic[T]):
    """Batches of the loader itself; the position is what its `state_dict` says."""

    kind = "own"

    def __init__(self, loader: Any, *, rank: int, world: int) -> None:
        super().__init__(rank=rank, world=world)
        self._loader = loader
        self._workers: int = getattr(loader, "num_workers", 0)
        self._state: Any = None
        self._used = False

    def _open(self, *, fresh: bool) -> Iterator[Any]:
        if not fresh and self._used:
            self._state = self._loader.state_dict()
        state, self._state = self._state, None
        if state is not None:
            self._loader.load_state_dict(copy.deepcopy(state))
        self._used = True
        return iter(self._loader)

    def _handed(self, item: Any) -> T:
        batch: T = item
        return batch

    def _finish(self) -> None:
        pass

    def _own_state(self) -> State:
        state = self._loader.state_dict() if self._used else self._state
        return {"workers": self._workers, "loader": copy.deepcopy(state)}

    def _load(self, states: Sequence[State]) -> State:
        same = len(states) == self.world and states[self.rank]["workers"] == self._workers
        if any(state["begun"] for state in states):
            mine = own_state_of(states, self.rank, self.world, "the loader keeps a state of its own on each rank")
            if not same:
                raise UsageError(
                    f"follow: the checkpoint is of {mine['workers']} workers in the middle of an epoch, this loader has {self._workers}, and keeps a state "
                    f"of each. Resume with num_workers={mine['workers']}; between two epochs it may change."
                )
        self._state = states[self.rank]["loader"] if same else None
        self._used = False
        return states[self.rank] if same else states[0]

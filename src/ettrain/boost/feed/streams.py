"""An iterable dataset in the place where it is iterated over, this process or a worker: its state, its end, and what it goes on from.

Stands in for the dataset in the loader's twin and passes on whatever is asked of it or set on it, so that a `worker_init_fn` may go on
setting the piece of the data that a worker has. Afterwards, the state of the dataset is taken, and that of its iterator, if they have one.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Final

from torch.utils.data import IterableDataset


class _Nothing:
    """A sample of an empty batch."""


NOTHING: Final = _Nothing()

Luggage = dict[str, Any]
"""State of a stream: `dataset` and `iterator`, each if there is one, and `at`: `start`, `middle`, or `end` once its end was met."""


def is_stateful(thing: Any) -> bool:
    """Whether it has `state_dict` and `load_state_dict`."""
    return callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))


class Stream(IterableDataset[Any]):  # type: ignore[misc]
    """The dataset, followed. Its own names begin with `_ett`."""

    def __init__(self, dataset: Any) -> None:
        self._ett_dataset = dataset
        self._ett_iterator: Any = None
        self._ett_at = "start"
        self._ett_next: tuple[Luggage, bool, int] | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_ett", "__")):
            raise AttributeError(name)
        return getattr(self._ett_dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_ett"):
            object.__setattr__(self, name, value)
        else:
            setattr(self._ett_dataset, name, value)

    def _ett_go_on(self, luggage: Luggage, *, anew: bool, skipped: int = 0) -> None:
        """When iterated next, go on from this state.

        Args:
            luggage: the state.
            anew: with the next pass, and not with the one that the state was taken in.
            skipped: how often to yield `NOTHING` first.
        """
        self._ett_next = (luggage, anew, skipped)

    def _ett_state(self) -> Luggage:
        """The state after the sample that was yielded last."""
        dataset, iterator = self._ett_dataset, self._ett_iterator
        state: Luggage = {"at": self._ett_at}
        if is_stateful(dataset):
            state["dataset"] = copy.deepcopy(dataset.state_dict())
        if iterator is not dataset and is_stateful(iterator):
            state["iterator"] = copy.deepcopy(iterator.state_dict())
        return state

    def __iter__(self) -> Iterator[Any]:
        """The samples. The dataset's iterator is made at once, as it is without us."""
        luggage, anew, skipped = self._ett_next or ({}, True, 0)
        self._ett_next = None
        if "dataset" in luggage:
            self._ett_dataset.load_state_dict(luggage["dataset"])
        at = luggage.get("at", "start")
        if anew and at == "middle":  # the dataset has yet to meet its end, where it may put itself back
            next(self._ett_made(luggage), None)
        elif at == "end" and not anew:
            self._ett_at = "end"
            return iter(())
        iterator = self._ett_made({} if anew else luggage)
        self._ett_at = "middle"
        return self._ett_samples(iterator, skipped)

    def _ett_made(self, luggage: Luggage) -> Iterator[Any]:
        iterator: Iterator[Any] = iter(self._ett_dataset)
        self._ett_iterator = iterator
        if "iterator" in luggage:
            self._ett_iterator.load_state_dict(luggage["iterator"])
        return iterator

    def _ett_samples(self, iterator: Iterator[Any], skipped: int) -> Iterator[Any]:
        for _ in range(skipped):
            yield NOTHING
        yield from iterator
        self._ett_at = "end"

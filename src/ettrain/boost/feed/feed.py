"""A loader that is followed: its batches, and the position after the last one that was handed out."""

from __future__ import annotations

import io
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar

import torch

from ettrain.boost.checkpoint import marks
from ettrain.boost.feed.ranks import State
from ettrain.errors import UsageError

T = TypeVar("T")

VERSION: Final = 1


class Feed(ABC, Generic[T]):
    """Iterate over it in place of the loader, once per epoch.

    What an engine may rely on when it puts the global random generators back, as they were saved together with `state()`:

    - Pass `at_resume` to `load`. It is called once, at the one right moment: after the iterator was made (which draws the workers' seed) and
      before anything is fetched, or, if the checkpoint was taken between two epochs, before the iterator is made. Where the dataset runs in
      this process, the first fetch draws from the generators as the fetch of an uninterrupted run did; a later moment would be wrong.
    - The order of an epoch that is under way is found again without moving any global generator.
    - Generators that the loader and its sampler hold are part of `state()`, and so are those of the worker processes, and are put back here.
    """

    kind = "feed"

    def __init__(self, *, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.epoch = 0
        """The epoch under way, or the next one between two."""
        self.batches = 0
        """Batches of this epoch that were handed out to this rank."""
        self._begun = False
        self._waits = False
        """This rank had finished the epoch when others had not; its pass is empty, so that the ranks' loops stay in step."""
        self._at_resume: Callable[[], None] | None = None
        self._pass: object = None
        self._tested = False

    # ---- the batches

    def __iter__(self) -> Iterator[T]:
        """The batches of the current epoch, from the position on."""
        self._pass = current = object()
        if self._waits:
            self._waits = False
            self.epoch += 1
            self._put_back()
            return iter(())
        fresh = not self._begun
        if fresh:
            self._put_back()
        iterator = self._open(fresh=fresh)
        self._begun = True
        self._put_back()
        return self._hand_out(iterator, current)

    def _put_back(self) -> None:
        put_back, self._at_resume = self._at_resume, None
        if put_back is not None:
            put_back()

    def _hand_out(self, iterator: Iterator[Any], current: object) -> Iterator[T]:
        for item in iterator:
            if self._pass is not current:
                raise UsageError("follow: a later pass over this loader has begun, so this one cannot go on; finish or drop it first")
            batch = self._handed(item)
            self.batches += 1
            yield batch
        self.epoch += 1
        self.batches = 0
        self._begun = False
        self._finish()

    @abstractmethod
    def _open(self, *, fresh: bool) -> Iterator[Any]:
        """An iterator from the position on; `fresh`: of an epoch of which nothing was drawn or handed out."""

    @abstractmethod
    def _handed(self, item: Any) -> T:
        """The batch in what the iterator gave, which is the training's from now on."""

    @abstractmethod
    def _finish(self) -> None:
        """The epoch is over."""

    # ---- the position

    def state(self) -> State:
        """The position of this rank, in plain values and tensors, after the last batch that was handed out.

        Raises:
            UsageError: a dataset or sampler of the program's has a state that holds other things than those.
        """
        state = {
            "version": VERSION,
            "kind": self.kind,
            "rank": self.rank,
            "world": self.world,
            "epoch": self.epoch + self._waits,
            "batches": self.batches,
            "begun": self._begun,
            **self._own_state(),
        }
        if not self._tested:
            _test(state)
            self._tested = True
        return state

    def load(self, states: Sequence[State], *, at_resume: Callable[[], None] | None = None) -> None:
        """Go on from a checkpoint: at the next iteration.

        Args:
            states: what `state()` gave on all ranks of the checkpoint, in rank order.
            at_resume: puts the global random generators back; called once, when it is right to do so.
        Raises:
            UsageError: the loader does not fit the states, so that what was trained cannot be told from what was not.
        """
        if not states:
            raise UsageError("follow: there is no state to go on from; pass those of all ranks of the checkpoint")
        for state in states:
            if state.get("version") != VERSION:
                raise UsageError(f"follow: a data position of version {state.get('version')!r}; this ettrain knows {VERSION}. Use the one that wrote it.")
            if state["kind"] != self.kind:
                raise UsageError(
                    f"follow: the checkpoint has the position of {KINDS.get(state['kind'], state['kind'])}, and this loader is {KINDS[self.kind]}. "
                    "Resume with the loader as it was, or leave its position out."
                )
        self._pass = None
        mine = self._load(states)
        self.epoch, self.batches, self._begun = mine["epoch"], mine["batches"], mine["begun"]
        self._waits = not self._begun and self.epoch == min(state["epoch"] for state in states) + 1
        self.epoch -= self._waits
        self._at_resume = at_resume

    @abstractmethod
    def _own_state(self) -> State: ...

    @abstractmethod
    def _load(self, states: Sequence[State]) -> State:
        """Go on from these; returns the one whose epoch and number of batches are this rank's."""

    def summary(self) -> dict[str, Any]:
        """The position for people and for the manifest: epoch, and in it the batches of this rank and the samples of all."""
        return {"epoch": self.epoch, "batches": self.batches, **self._told()}

    def _told(self) -> dict[str, Any]:
        return {}

    def _say(self, text: str) -> None:
        if self.rank == 0:
            sys.stderr.write(f"ettrain: follow: {text}\n")


KINDS: Final = {
    "map": "a map-style dataset",
    "iterable": "an iterable dataset",
    "pieces": "a dataset in pieces",
    "own": "a loader that keeps its own state",
}


def _test(state: State) -> None:
    file = io.BytesIO()
    try:
        with marks.apart():
            torch.save(state, file)
            file.seek(0)
            torch.load(file, weights_only=True)
    except Exception as error:
        raise UsageError(
            "follow: the state of the dataset, sampler or loader holds more than numbers, texts, lists, tuples, dicts and tensors, and a checkpoint "
            f"must not run code when it is loaded. Let its state_dict() return plain values. ({type(error).__name__}: {str(error)[:200]})"
        ) from error

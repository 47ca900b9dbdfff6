"""The feed of a DataLoader: its batches come from a twin that takes its indices from a plan, and its workers keep their random states."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import torch

from ettrain.boost.feed.feed import Feed
from ettrain.boost.feed.loaders import twin_of
from ettrain.boost.feed.pieces import Dealt, Pieces, is_in_pieces, merged
from ettrain.boost.feed.plans import Plan
from ettrain.boost.feed.ranks import State, has_state, own_state_of, refuse_disagreeing, streams_of
from ettrain.boost.feed.streams import Luggage, Stream, is_stateful
from ettrain.boost.feed.workers import NOBODY, Enter, plain_generators, plain_stream
from ettrain.errors import UsageError

T = TypeVar("T")


class TwinFeed(Feed[T], Generic[T]):
    """Batches from the loader's twin; the position is the plan's, and beside it the states of the worker processes."""

    def __init__(self, loader: Any, plan: Plan | None, held: list[torch.Generator], *, rank: int, world: int) -> None:
        super().__init__(rank=rank, world=world)
        self.kind = "map" if plan is not None else "pieces" if is_in_pieces(loader.dataset) else "iterable"
        self._plan = plan
        self._held = held
        self._held_states: list[torch.Tensor] | None = None
        self._workers: int = loader.num_workers
        self._lasting: bool = loader.persistent_workers
        self._aligned = plan is None or not hasattr(loader.dataset, "__getitems__")
        """Whether a worker can be passed over by an empty batch, which a dataset may not be asked for."""
        self._seeder: torch.Generator | None = loader.generator
        self._dataset = loader.dataset
        if plan is None:
            self._dataset = Pieces(loader.dataset, rank=rank, world=world) if self.kind == "pieces" else Stream(loader.dataset)
        self._base: Dealt = {}
        """States of the pieces when they were dealt out for this epoch."""
        self._ended: Dealt = {}
        """Pieces that this rank had in the epoch before, for others that are still in it."""
        self._stream: Luggage | None = None
        """The state of a dataset that is iterated over in this process, where it goes on from one."""
        self._enter = Enter(loader.worker_init_fn)
        self._loader = loader
        self._twin = twin_of(loader, self._dataset, plan, self._enter)
        self._last = -1
        """The worker whose batch was handed out last, by its number in an uninterrupted epoch."""
        self._shift = 0
        """What to add to a worker's number for that of the uninterrupted epoch."""
        self._luggage: dict[int, dict[str, Any]] = {}
        self._drew = False
        """Whether the dataset draws random numbers in the workers."""
        self._before: torch.Tensor | None = None
        """The generator that gave the workers' seed, before it did."""

    # ---- the batches

    def _open(self, *, fresh: bool) -> Iterator[Any]:
        if not fresh and self._plan is not None and self._plan.spent():
            return iter(())
        if fresh:
            self._put_back_held()
        if not self._workers:
            self._go_on_here(fresh=fresh)
        first = (self._last + 1) % self._workers if self._workers else 0
        self._shift = 0 if self._aligned else first
        iterator = self._iterator(first, fresh=fresh)
        self._put_back_held()
        return iterator

    def _go_on_here(self, *, fresh: bool) -> None:
        """The dataset goes on in this process from its state at the checkpoint; an iterator that was left goes on as well."""
        stream, self._stream = self._stream, None
        if isinstance(self._dataset, Stream):
            if stream is None and not fresh:
                stream = self._dataset._ett_state()
            if stream is not None:
                self._dataset._ett_go_on({"base": self._base, **copy.deepcopy(stream)}, anew=fresh)
        elif stream is not None:
            self._dataset.load_state_dict(copy.deepcopy(stream["dataset"]))

    def _iterator(self, first: int, *, fresh: bool) -> Iterator[Any]:
        """An iterator of the twin, whose workers go on from their luggage and begin with the seeds they began with."""
        if self._workers and not fresh and self._lasting:  # workers that are alive are ahead of the position
            self._twin = twin_of(self._loader, self._dataset, self._plan, self._enter)
        now = self._seed_state()
        again = self._workers > 0 and self._before is not None
        if not again:
            self._before = now
        undo = partial(_put_back, self._seeder, now) if again else _nothing
        if self._plan is not None:
            self._plan.prepare(self.epoch, skips=first if self._aligned else 0, before=undo)
        self._enter.luggage = {(worker - self._shift) % self._workers: self._unpacked(worker) for worker in self._luggage}
        self._enter.base = self._base
        skipped = first if self._plan is None else 0
        self._enter.skipped = dict.fromkeys(range(skipped), self._loader.batch_size or 1)
        try:
            if again and self._before is not None:
                _put_back(self._seeder, self._before)
            return iter(self._twin)
        finally:
            self._enter.luggage, self._enter.skipped = {}, {}
            if not fresh or self._plan is None:
                undo()

    def _unpacked(self, worker: int) -> dict[str, Any]:
        """A worker's luggage, each part unpacked once."""
        luggage = self._luggage[worker]
        for part, unpack in (("generators", plain_generators), ("stream", plain_stream)):
            if isinstance(luggage.get(part), bytes):
                luggage[part] = unpack(luggage[part])
        return dict(luggage)

    def _seed_state(self) -> torch.Tensor:
        return torch.get_rng_state() if self._seeder is None else self._seeder.get_state()

    def _put_back_held(self) -> None:
        """The generators that loader and sampler hold, as they were at the checkpoint."""
        states, self._held_states = self._held_states, None
        for generator, state in zip(self._held, states or (), strict=False):
            generator.set_state(state)

    def _handed(self, item: Any) -> T:
        if self._plan is not None:
            self._plan.handed()
        if not self._workers:
            batch: T = item
            return batch
        batch, worker, drawn, dataset = item
        self._last = (worker + self._shift) % self._workers
        luggage = self._luggage.setdefault(self._last, {})
        luggage["over"] = False
        if drawn is not None:
            self._drew = self._drew or "generators" in luggage
            luggage["generators"] = drawn
        if dataset is not None:
            luggage["stream"] = dataset
        return batch

    def _hand_out(self, iterator: Iterator[Any], current: object) -> Iterator[T]:
        if self._workers:
            iterator = (item for item in iterator if item[1] != NOBODY)
        return super()._hand_out(iterator, current)

    def _finish(self) -> None:
        if self._plan is not None:
            self._plan.finish()
        self._last = -1
        if isinstance(self._dataset, Pieces):
            here = [luggage.get("stream", {}) for luggage in map(self._unpacked, self._luggage) if not luggage["over"]]
            here = here if self._workers else [self._dataset._ett_state()]
            self._ended = {number: {"at": "end"} for number in merged({}, here)}
        self._base = {}
        for luggage in self._luggage.values():
            luggage["over"] = True
        if not self._lasting:
            self._luggage.clear()
            self._before = None

    # ---- the position

    def _own_state(self) -> State:
        state: State = {
            "workers": self._workers,
            "last": self._last,
            "luggage": {worker: self._unpacked(worker) for worker in self._luggage},
            "drew": self._drew,
            "before": self._before if self._workers else None,
            "held": [generator.get_state() for generator in self._held],
        }
        if self._plan is not None:
            state["plan"] = self._plan.state()
        if self.kind == "pieces":
            state |= {"base": self._base, "ended": self._ended, "pieces": self._loader.dataset.pieces}
        if not self._workers:
            state["stream"] = self._state_here()
        return state

    def _state_here(self) -> Luggage | None:
        if self._stream is not None:
            return self._stream
        if isinstance(self._dataset, Stream):
            return self._dataset._ett_state()
        return {"dataset": copy.deepcopy(self._dataset.state_dict())} if is_stateful(self._dataset) else None

    def _load(self, states: Sequence[State]) -> State:
        same = len(states) == self.world
        mine = states[self.rank] if same else states[0]
        under_way = any(state["begun"] for state in states)
        if self._plan is not None:
            self._load_plan(self._plan, states, under_way=under_way)
        if under_way and self.kind == "pieces":
            self._refuse_other_pieces(mine["pieces"])
        elif under_way and (self._plan is None or has_state(mine)):
            mine = own_state_of(states, self.rank, self.world, "its dataset keeps a state on each rank")
            if mine["workers"] != self._workers:
                raise UsageError(
                    f"follow: the checkpoint is of {mine['workers']} workers in the middle of an epoch, this loader has {self._workers}, and its "
                    f"dataset keeps a state in each. Resume with num_workers={mine['workers']}; between two epochs it may change."
                )
        same = same and mine["workers"] == self._workers
        self._last = mine["last"] if same else -1
        self._luggage = {worker: dict(luggage) for worker, luggage in mine["luggage"].items()} if same else {}
        self._before = mine["before"] if same else None
        self._stream = mine.get("stream") if same else None
        if self.kind == "pieces":
            mine = self._deal(mine, states, same=same)
        self._held_states = mine["held"]
        self._drew = mine["drew"] and same
        if self._lasting:
            self._twin = twin_of(self._loader, self._dataset, self._plan, self._enter)
        if under_way and not same and mine["drew"]:
            self._say("the dataset draws random numbers in its workers, whose number changed: from here on it draws others")
        return mine

    def _deal(self, mine: State, states: Sequence[State], *, same: bool) -> State:
        """Take over the pieces as they were dealt out, or deal them out anew, where ranks or workers changed in number."""
        self._ended = mine["ended"] if same else {}
        if same:
            self._base = mine["base"]
            return mine
        epoch = min(state["epoch"] for state in states)
        behind, ahead = [state for state in states if state["epoch"] == epoch], [state for state in states if state["epoch"] > epoch]
        if any(state["begun"] or state["epoch"] > epoch + 1 for state in ahead):
            raise UsageError(
                f"follow: some ranks of the checkpoint are in epoch {epoch}, others have begun a later one; ranks or workers cannot change in number there. "
                "Resume with as many as there were."
            )
        self._base = merged(behind[0]["base"], [*streams_of(behind), *({"pieces": state["ended"]} for state in ahead)])
        return behind[0] | {"begun": bool(self._base) or behind[0]["begun"]}

    def _refuse_other_pieces(self, number: int) -> None:
        if number != self._loader.dataset.pieces:
            raise UsageError(
                f"follow: the dataset is in {self._loader.dataset.pieces} pieces, and was in {number} when the checkpoint was written in the middle of an "
                "epoch. Resume with as many; between two epochs their number may change."
            )

    def _load_plan(self, plan: Plan, states: Sequence[State], *, under_way: bool) -> None:
        positions = [state["plan"] for state in states]
        if set(positions[0]) != set(plan.state()):
            raise UsageError(
                "follow: the checkpoint has the position of another kind of sampler: one of the two has a state_dict() of its own. Resume with the "
                "sampler as it was."
            )
        if positions[0]["shared"] and (plan.shared or not under_way):
            refuse_disagreeing(states)
            said = plan.load(positions[0])
        elif under_way or len(states) == self.world:
            own_state_of(states, self.rank, self.world, "each rank follows an order of its own")
            said = plan.load(positions[self.rank])
        else:
            return
        if said:
            self._say(said)

    def _told(self) -> dict[str, Any]:
        return {} if self._plan is None else self._plan.told()


def _put_back(seeder: torch.Generator | None, state: torch.Tensor) -> None:
    if seeder is None:
        torch.set_rng_state(state)
    else:
        seeder.set_state(state)


def _nothing() -> None:
    pass

"""The order in which one epoch's samples come: drawn from the loader's own sampler, and drawn again from its recipe after a restart.

A recipe is plain data: which sampler, and the state of every random generator it could draw from, right before it drew. Drawing again leaves
all generators as they were. A checksum over the order tells a sampler that does not repeat itself from one that does.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from ettrain.boost import generators
from ettrain.errors import UsageError

Recipe = dict[str, Any]
Units = Sequence[Any]
"""Indices of samples in their order; or whole batches of indices, where the program has a batch sampler of its own."""


class Order:
    """One epoch's units, and how to get them again."""

    def __init__(self, units: Units, recipe: Recipe) -> None:
        self.units = units
        self.recipe = recipe


def kind_of(sampler: Any) -> str:
    """`sequential`, `random` (each sample once), `distributed`, or `own` for any other."""
    if type(sampler) is SequentialSampler:
        return "sequential"
    if isinstance(sampler, DistributedSampler) and type(sampler).__module__.startswith(("torch.", "torchdata.")):
        return "distributed"
    torchdatas = type(sampler).__name__ == "RandomSampler" and type(sampler).__module__.startswith("torchdata.")
    if (torchdatas or type(sampler) is RandomSampler) and not sampler.replacement and sampler.num_samples == len(sampler.data_source):
        return "random"
    return "own"


def own_generators(*holders: Any) -> list[torch.Generator]:
    """The generators that samplers hold, each once."""
    found: list[torch.Generator] = []
    for holder in holders:
        generator = getattr(holder, "generator", None)
        if isinstance(generator, torch.Generator) and all(generator is not other for other in found):
            found.append(generator)
    return found


def draw(sampler: Any, size: int, *, seed: int | None, epoch: int, shared: bool) -> Order:
    """Draw an epoch's order, with the same draws from the same generators as the program's own loader.

    Args:
        sampler: the sampler of samples, or of whole batches.
        size: samples in the dataset.
        seed: of an order that all ranks share, in place of the sampler's own draws.
        epoch: goes with `seed`.
        shared: whether several ranks have to draw the same.
    Raises:
        UsageError: ranks that have to agree draw from generators of their own.
    """
    kind = kind_of(sampler)
    if kind == "sequential":
        return _order(range(size), {"kind": kind, "size": size})
    if kind == "distributed":
        recipe = {"kind": kind, "size": size, "shuffle": sampler.shuffle, "seed": sampler.seed, "epoch": sampler.epoch}
        return _order(_distributed(recipe), recipe)
    if kind == "random" and seed is not None:
        recipe = {"kind": "distributed", "size": size, "shuffle": True, "seed": seed, "epoch": epoch}
        return _order(_distributed(recipe), recipe)
    own = own_generators(sampler, getattr(sampler, "sampler", None))
    before = generators.take(with_devices=False)
    recipe = {"kind": kind, "size": size, "global": generators.as_plain(before), "own": [generator.get_state() for generator in own]}
    if isinstance(getattr(sampler, "epoch", None), int) and hasattr(sampler, "set_epoch"):
        recipe["epoch"] = sampler.epoch
    order = _order(_listed(sampler), recipe)
    if shared and generators.moved(before, generators.take(with_devices=False)):
        raise UsageError(
            f"follow: {type(sampler).__name__} draws from the global random generators, so each rank would have an order of its own. "
            "Let it draw from a torch.Generator seeded with the epoch."
        )
    return order


def draw_again(recipe: Recipe, sampler: Any) -> Order:
    """The order that `recipe` describes; no generator is moved.

    Raises:
        UsageError: the program's sampler gives another order than it gave then.
    """
    with _as_then(recipe, sampler) as current:
        kind = recipe["kind"]
        if kind == "sequential":
            order = _order(range(recipe["size"]), dict(recipe))
        elif kind == "distributed":
            order = _order(_distributed(recipe), dict(recipe))
        elif kind == "random":
            order = _order(_listed(RandomSampler(range(recipe["size"]), generator=current)), dict(recipe))
        else:
            order = _order(_listed(sampler), dict(recipe))
    if order.recipe["crc32"] != recipe["crc32"] or len(order.units) != recipe["count"]:
        raise UsageError(
            f"follow: {type(sampler).__name__} gave another order now ({len(order.units)} entries) than when the checkpoint was written "
            f"({recipe['count']} entries), so the rest of the epoch is not known. Its order may depend only on set_epoch, on a `generator` it "
            "holds and on the global random generators; or give it state_dict() and load_state_dict()."
        )
    return order


def change(recipe: Recipe, sampler: Any, seed: int | None) -> str | None:
    """What tells the order that was begun from the one that the sampler would draw now, where that is known without asking it."""
    kind = kind_of(sampler)
    now: tuple[str, bool | None, int | None] = (kind, None, None)
    if kind == "random" and seed is not None:
        now = ("distributed", True, seed)
    elif kind == "distributed":
        now = (kind, sampler.shuffle, sampler.seed)
    then = (recipe["kind"], recipe.get("shuffle"), recipe.get("seed"))
    if now == then:
        return None
    return f"the epoch under way is finished in the order it began with ({_named(*then)}); the loader's ({_named(*now)}) begins with the next one"


def _named(kind: str, shuffle: bool | None, seed: int | None) -> str:  # noqa: FBT001 - two parts of a description
    if kind != "distributed":
        return {"own": "a sampler of the program's own"}.get(kind, kind)
    return f"distributed, shuffled with seed {seed}" if shuffle else "distributed, in sequence"


@contextmanager
def _as_then(recipe: Recipe, sampler: Any) -> Iterator[torch.Generator | None]:
    """All generators as they were before the order was drawn; yields the one that a random sampler drew from, if it was one of its own."""
    states = recipe.get("own", [])
    if recipe["kind"] == "random" and states:
        generator = torch.Generator()
        generator.set_state(states[0])
        yield generator
        return
    held = own_generators(sampler, getattr(sampler, "sampler", None))
    own = list(zip(held, states, strict=False)) if recipe["kind"] == "own" else []
    now, now_own = generators.take(with_devices=False), [generator.get_state() for generator, _ in own]
    epoch = getattr(sampler, "epoch", None)
    try:
        if "global" in recipe:
            generators.put_back(generators.from_plain(recipe["global"]))
        for generator, state in own:
            generator.set_state(state)
        if recipe["kind"] == "own" and "epoch" in recipe:
            sampler.set_epoch(recipe["epoch"])
        yield None
    finally:
        generators.put_back(now)
        for (generator, _), state in zip(own, now_own, strict=True):
            generator.set_state(state)
        if recipe["kind"] == "own" and "epoch" in recipe:
            sampler.set_epoch(epoch)


def _distributed(recipe: Recipe) -> Units:
    sampler: Any = DistributedSampler(range(recipe["size"]), num_replicas=1, rank=0, shuffle=recipe["shuffle"], seed=recipe["seed"])
    sampler.set_epoch(recipe["epoch"])
    return _listed(sampler) if recipe["shuffle"] else range(recipe["size"])


def _listed(sampler: Iterable[Any]) -> Units:
    """All that a sampler yields: 8 bytes an index, where they are indices."""
    units = list(sampler)
    if kind_of(sampler) != "own" or set(map(type, units)) <= {int}:
        try:
            return array("q", units)
        except OverflowError:
            pass
    return units


def _order(units: Units, recipe: Recipe) -> Order:
    if isinstance(units, range):
        checksum = 0
    elif isinstance(units, array):
        checksum = zlib.crc32(memoryview(units))
    else:
        checksum = zlib.crc32(repr(units).encode())
    recipe["crc32"], recipe["count"] = checksum, len(units)
    return Order(units, recipe)

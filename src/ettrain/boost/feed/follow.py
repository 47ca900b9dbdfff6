"""`follow`: look at a loader, refuse what cannot be kept exactly, and follow the rest."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.utils.data import DataLoader

from ettrain.boost import generators
from ettrain.boost.feed.blocks import DROP, EVEN, KEEP
from ettrain.boost.feed.feed import Feed
from ettrain.boost.feed.loaders import is_iterable, iterates_its_own_way, sampling_of
from ettrain.boost.feed.orders import kind_of, own_generators
from ettrain.boost.feed.pieces import is_in_pieces
from ettrain.boost.feed.plans import OrderPlan, Plan, Share, StatePlan
from ettrain.boost.feed.statefeed import StateFeed
from ettrain.boost.feed.streams import is_stateful
from ettrain.boost.feed.twinfeed import TwinFeed
from ettrain.boost.first.face import FirstBatch
from ettrain.errors import UsageError

STATE = "state_dict() and load_state_dict()"


def follow(loader: Any, *, rank: int, world: int, seed: int | None = None, split: bool | None = None) -> Feed[Any]:
    """Follow a loader: hand out its batches, and know which were handed out.

    Args:
        loader: torch's DataLoader or torchdata's StatefulDataLoader over a map-style or iterable dataset, or any loader with `state_dict`
            and `load_state_dict` that tell the position after the last batch it gave.
        rank: this process's rank.
        world: number of ranks.
        seed: of an order that all ranks share, for a loader that shuffles without one; implies `split`.
        split: on several ranks, for a loader without a DistributedSampler: True, its dataset is all the data, to be split over the ranks;
            False, it is this rank's own part.
    Returns:
        The feed, at the beginning of epoch 0.
    Raises:
        UsageError: with this loader it cannot be told, or not guaranteed, which samples were trained.
    """
    if isinstance(loader, Feed):
        return loader
    if isinstance(loader, FirstBatch):
        raise UsageError(
            "follow: ett.first_batch has started this loader already, and what it fetched is not known here. Follow the loader itself; "
            "ett.first_batch may be given the feed, before its first pass."
        )
    if not isinstance(loader, DataLoader) or iterates_its_own_way(loader):
        if is_stateful(loader):
            return StateFeed(loader, rank=rank, world=world)
        raise UsageError(
            f"follow: {_name(loader)} is not iterated over as torch's DataLoader is, so its position is not known. Follow the DataLoader "
            f"below it, or give it {STATE} of the position after the last batch."
        )
    if loader.num_workers and not loader.in_order:
        raise UsageError("follow: the loader has in_order=False, so which batches were trained depends on the workers' speed. Leave in_order out.")
    if is_iterable(loader):
        return _of_iterable(loader, rank, world)
    plan, held = _plan(loader, rank, world, seed=seed, split=split)
    return TwinFeed(loader, plan, held, rank=rank, world=world)


def _of_iterable(loader: Any, rank: int, world: int) -> Feed[Any]:
    dataset = loader.dataset
    if is_in_pieces(dataset):
        dataset = dataset.piece(0)
    if not is_stateful(dataset) and not _iterator_is_stateful(dataset):
        raise UsageError(
            f"follow: {_name(dataset)} is an iterable dataset that cannot tell where it stands, so batches would be trained twice or never. Give it, or "
            f"the iterator it makes, {STATE}: of the position after the sample it yielded last (docs/data.md has an example)."
        )
    return TwinFeed(loader, None, own_generators(loader), rank=rank, world=world)


def _iterator_is_stateful(dataset: Any) -> bool:
    """Makes an iterator to see, unless it would be a generator, and takes nothing from it."""
    if inspect.isgeneratorfunction(getattr(type(dataset), "__iter__", None)):
        return False
    states = generators.take(with_devices=False)
    try:
        return is_stateful(iter(dataset))
    finally:
        generators.put_back(states)


def _plan(loader: Any, rank: int, world: int, *, seed: int | None, split: bool | None) -> tuple[Plan, list[torch.Generator]]:
    sampler, batch, drop_last, whole = sampling_of(loader)
    kind = "own" if whole else kind_of(sampler)
    if kind == "own" and is_stateful(sampler):
        _refuse_unless_own(sampler, rank, world, split)
        share = Share(batch=batch, whole=whole)
        return StatePlan(sampler, share, drop_last=drop_last), [held for held in own_generators(loader) if held not in own_generators(sampler)]
    if getattr(sampler, "__len__", None) is None:
        raise UsageError(
            f"follow: {_name(sampler)} has neither a length nor a state, so its order cannot be found again after a restart. "
            f"Give it __len__, or {STATE}."
        )
    tail = DROP if drop_last else EVEN if kind == "distributed" and sampler.drop_last else KEEP
    if split is None and seed is not None:
        split = True
    if kind == "distributed":
        share = Share(rank=sampler.rank, world=sampler.num_replicas, batch=batch, tail=tail, shared=True)
    elif world > 1 and split and not whole:
        if kind == "random" and seed is None:
            seed = 0
        share = Share(rank=rank, world=world, batch=batch, tail=tail, shared=True)
    else:
        _refuse_unless_own(sampler, rank, world, split)
        share = Share(batch=batch, tail=tail, whole=whole, shared=world == 1 and not whole)
    size = _size({"distributed": "dataset", "own": ""}.get(kind, "data_source"), sampler, loader.dataset)
    _refuse_too_few(size, share)
    return OrderPlan(sampler, size, share, seed), own_generators(loader, sampler, getattr(sampler, "sampler", None))


def _refuse_unless_own(sampler: Any, rank: int, world: int, split: bool | None) -> None:  # noqa: FBT001 - as `follow` was given it
    """On several ranks somebody has to say whether the order is this rank's or everybody's."""
    if world == 1 or (split is not None and not split) or _knows_ranks(sampler):
        return
    if split:
        raise UsageError(f"follow: {_name(sampler)} cannot be split over {world} ranks. Let it yield this rank's part only, and say split=False.")
    raise UsageError(
        f"follow: rank {rank} of {world} has a {_name(sampler)}: nothing says whether the dataset is all the data, to be split over the ranks, or this "
        "rank's own part. Give the loader sampler=DistributedSampler(dataset), or pass seed=, if it is all the data; if it is the rank's own, follow it with "
        "ettrain.boost.feed.follow(loader, rank=..., world=..., split=False), and use that in its place."
    )


def _knows_ranks(sampler: Any) -> bool:
    named = (("rank", "num_replicas"), ("rank", "world_size"), ("rank", "world"))
    return any(all(hasattr(sampler, name) for name in names) for names in named) or (hasattr(sampler, "sampler") and _knows_ranks(sampler.sampler))


def _refuse_too_few(size: int, share: Share) -> None:
    if share.world == 1 or share.tail != KEEP:
        return
    if size < share.world:
        raise UsageError(f"follow: {size} samples are too few for {share.world} ranks, of which each needs one. Use fewer ranks.")
    if share.batch is None and size % share.world:
        raise UsageError(
            f"follow: {size} samples, one at a time (batch_size=None), leave {share.world - size % share.world} of {share.world} ranks without a last one, "
            "and the others would wait for them. Use batch_size=1, or DistributedSampler(..., drop_last=True)."
        )


def _size(source: str, sampler: Any, dataset: Any) -> int:
    """Number of samples that the sampler knows of, which may be fewer than the dataset's; -1 where nobody tells."""
    try:
        return len(getattr(sampler, source) if source else dataset)
    except TypeError:
        return -1


def _name(thing: Any) -> str:
    return type(thing).__name__

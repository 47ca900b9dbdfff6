"""What a DataLoader consists of, by its public attributes, and a twin of it that takes its indices from us.

The twin has the same dataset, workers, collate function and generator, so it draws what the loader would draw; only the sampler is a plan.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from ettrain.boost.feed.plans import NOBODYS
from ettrain.boost.feed.workers import Enter, Pack


class Singles:
    """A plan of single samples, each in a list of its own."""

    def __init__(self, plan: Any) -> None:
        self._plan = plan

    def __iter__(self) -> Iterator[list[Any]]:
        """As the plan goes."""
        return (index if index is NOBODYS else [index] for index in self._plan)


def iterates_its_own_way(loader: Any) -> bool:
    """Whether a program's own kind of DataLoader changed how it is iterated over."""
    for cls in type(loader).__mro__:
        if cls.__module__.startswith(("torch.", "torchdata.")):
            return False
        if "__iter__" in vars(cls) or "_get_iterator" in vars(cls):
            return True
    return False


def is_iterable(loader: Any) -> bool:
    """Whether its dataset yields samples by itself."""
    return isinstance(loader.dataset, IterableDataset)


def sampling_of(loader: Any) -> tuple[Any, int | None, bool, bool]:
    """The sampler, batch size and `drop_last` of a map-style loader, and whether the sampler yields whole batches."""
    batches = loader.batch_sampler
    if batches is None:
        return loader.sampler, None, False, False
    if type(batches) is BatchSampler or (isinstance(batches, BatchSampler) and type(batches).__module__.startswith("torchdata.")):
        return batches.sampler, batches.batch_size, batches.drop_last, False
    return batches, None, False, True


def twin_of(loader: Any, dataset: Any, plan: Any, enter: Enter) -> Any:
    """The twin. With worker processes it yields parcels in place of batches.

    Args:
        loader: the loader.
        dataset: its dataset, or what stands in for it.
        plan: yields the indices; None for an iterable dataset.
        enter: what its workers begin with.
    """
    same: dict[str, Any] = {
        name: getattr(loader, name) for name in ("num_workers", "pin_memory", "timeout", "multiprocessing_context", "generator", "persistent_workers")
    }
    if getattr(loader, "pin_memory_device", ""):
        same["pin_memory_device"] = loader.pin_memory_device
    single = plan is not None and loader.batch_sampler is None
    listed = single and loader.num_workers > 0 and not hasattr(loader.dataset, "__getitems__")  # single samples travel as lists of one
    if loader.num_workers:
        same["prefetch_factor"] = loader.prefetch_factor
        same["worker_init_fn"] = enter
        same["collate_fn"] = Pack(loader.collate_fn, single=listed)
    else:
        same["collate_fn"] = loader.collate_fn
    if plan is None:
        same |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    elif not single:
        same["batch_sampler"] = plan
    elif listed:
        same["batch_sampler"] = Singles(plan)
    else:
        same |= {"batch_size": None, "sampler": plan}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the program's own loader has warned of the same already
        return DataLoader(dataset, **same)

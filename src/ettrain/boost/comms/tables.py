"""TorchRec: the metadata of sharded tables from the plan that every rank holds, instead of one `all_gather_object` per table.

TorchRec itself does this for `EmbeddingBagCollection`; here it is done for `EmbeddingCollection` and managed collision modules, while a
model is built inside `local_shard_metadata()`. What the plan does not settle (virtual tables, 2D sharding, kernels that train by
autograd) is gathered as before; so is everything where this TorchRec is not one that was tested, which a warning says. Whether a table
is gathered follows from the plan alone, so that all ranks decide alike.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from typing import Any, Final

from torch.distributed._shard.sharded_tensor import ShardedTensor, TensorProperties
from torch.distributed._shard.sharding_spec import EnumerableShardingSpec, ShardMetadata

from ettrain.boost.comms.private import TESTED_TORCHREC, UnsupportedTorchError, lookup
from ettrain.boost.comms.shards import check_metadata, global_metadata
from ettrain.errors import MissingExtraError

_HOME: Final = "torch.distributed._shard.sharded_tensor"
_KERNELS: Final = ("fused", "fused_uvm", "fused_uvm_caching")
"""Kernels whose weights carry no gradient, so that ranks without a shard know the properties of the others'."""


class Tables:
    """What was done so far inside one `local_shard_metadata()`."""

    def __init__(self, *, check: bool) -> None:
        self.check = check
        self.built = 0
        """Tables whose metadata was built here."""
        self.gathered = 0
        """Tables that were gathered after all."""
        self.here = _Here()


class _Here(threading.local):
    """The module of TorchRec that a thread is building, and how many of its tables so far."""

    owner: Any = None
    index = 0


@contextmanager
def local_shard_metadata(*, check: bool = False) -> Iterator[Tables]:
    """Build TorchRec's sharded modules without gathering their tables' metadata.

    `with local_shard_metadata(): model = DistributedModelParallel(...)`. All ranks must do it alike.

    Args:
        check: gather as well and compare; for a test, as it costs what this is to save.
    Yields:
        Counts of the tables built and gathered.
    Raises:
        MissingExtraError: torchrec is not installed.
        MetadataError: with `check`, where the ranks hold something else than the plan says.
    """
    done = Tables(check=check)
    why, parts = _torchrec()
    if why:
        warnings.warn(f"ettrain: tables' metadata is gathered as before: {why}", RuntimeWarning, stacklevel=3)
        yield done
        return
    theirs = ShardedTensor.__dict__["_init_from_local_shards"]
    states = [cls.__dict__["_initialize_torch_state"] for cls, _ in parts]
    ShardedTensor._init_from_local_shards = _built(theirs.__func__, done, dict(parts))
    for (cls, _), state in zip(parts, states, strict=True):
        cls._initialize_torch_state = _owned(state, done)
    try:
        yield done
    finally:
        ShardedTensor._init_from_local_shards = theirs
        for (cls, _), state in zip(parts, states, strict=True):
            cls._initialize_torch_state = state


Describe = Callable[[Any, Any, tuple[int, ...], int], Any]


def _torchrec() -> tuple[str, list[tuple[Any, Describe]]]:
    """(why it cannot be done, '' if it can; module class -> how its tables are described)."""
    try:
        torchrec = import_module("torchrec")
    except ImportError as error:
        raise MissingExtraError("torchrec", "local_shard_metadata") from error
    version = str(getattr(torchrec, "__version__", "?"))
    if not version.startswith(TESTED_TORCHREC):
        return f"torchrec {version} is not one of those tested ({', '.join(TESTED_TORCHREC)}x)", []
    try:
        lookup(_HOME, "ShardedTensor._init_from_local_shards", "")
        lookup(_HOME, "ShardedTensor._init_from_local_shards_and_global_metadata", "")
        collection = lookup("torchrec.distributed.embedding", "ShardedEmbeddingCollection", "")
        collisions = lookup("torchrec.distributed.mc_modules", "ShardedManagedCollisionCollection", "")
        for cls in (collection, collisions):
            lookup(cls.__module__, f"{cls.__name__}._initialize_torch_state", "")
    except UnsupportedTorchError as error:
        return str(error), []
    return "", [(collection, _table), (collisions, _collision_buffer)]


def _owned(state: Callable[..., Any], done: Tables) -> Callable[..., Any]:
    """`_initialize_torch_state` that says whose it is."""

    @wraps(state)
    def _initialize_torch_state(self: Any, *args: Any, **kwargs: Any) -> Any:
        here = done.here
        outer = here.owner, here.index
        here.owner, here.index = self, 0
        try:
            return state(self, *args, **kwargs)
        finally:
            here.owner, here.index = outer

    return _initialize_torch_state


def _built(gather: Callable[..., Any], done: Tables, describe: dict[Any, Describe]) -> Any:
    """What stands in for `ShardedTensor._init_from_local_shards`."""

    @wraps(gather)
    def _init_from_local_shards(cls: Any, local_shards: Any, *size: Any, process_group: Any = None, init_rrefs: bool = False) -> Any:
        owner, index = done.here.owner, done.here.index
        done.here.index += 1
        how = next((how for kind, how in describe.items() if isinstance(owner, kind)), None)
        sizes = tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else size
        metadata = how(owner, local_shards, sizes, index) if how is not None else None
        if metadata is None:
            done.gathered += owner is not None
            return gather(cls, local_shards, *size, process_group=process_group, init_rrefs=init_rrefs)
        if done.check:
            check_metadata(metadata, gather(cls, local_shards, *size, process_group=process_group).metadata())
        done.built += 1
        return cls._init_from_local_shards_and_global_metadata(local_shards, metadata, process_group=process_group)

    return classmethod(_init_from_local_shards)


def _table(module: Any, local_shards: Any, sizes: tuple[int, ...], index: int) -> Any:
    """Metadata of a table of an `EmbeddingCollection` by the plan; None where the plan does not settle it."""
    tables = module._model_parallel_name_to_local_shards
    name = next((name for name, shards in tables.items() if shards is local_shards), None)
    if name is None or _is_2d(module):
        return None
    plan, config = module.module_sharding_plan[name], module._table_name_to_config[name]
    if plan.compute_kernel not in _KERNELS or plan.sharding_spec is None or getattr(config, "use_virtual_table", False):
        return None
    dtype = import_module("torchrec.modules.embedding_configs").data_type_to_dtype(config.data_type)
    return global_metadata(plan.sharding_spec, sizes, TensorProperties(dtype=dtype))


def _collision_buffer(module: Any, local_shards: Any, sizes: tuple[int, ...], index: int) -> Any:
    """Metadata of a buffer of a managed collision module: cut along its rows as the table is. Buffers come in the module's order."""
    prefix = "_managed_collision_modules"
    sharded = set(module.sharded_parameter_names(prefix=prefix))
    names = [name for name in module.state_dict() if name in sharded]
    plan = module._table_name_to_parameter_sharding.get(names[index].split(".")[1])
    if _is_2d(module) or plan is None or plan.sharding_spec is None:
        return None
    shard, shards = local_shards[0], plan.sharding_spec.shards
    if sum(part.shard_sizes[0] for part in shards) != sizes[0]:
        return None
    metadata = [
        ShardMetadata(
            shard_offsets=[part.shard_offsets[0], *shard.metadata.shard_offsets[1:]],
            shard_sizes=[part.shard_sizes[0], *shard.metadata.shard_sizes[1:]],
            placement=part.placement,
        )
        for part in shards
    ]
    return global_metadata(EnumerableShardingSpec(metadata), sizes, TensorProperties(dtype=shard.tensor.dtype))


def _is_2d(module: Any) -> bool:
    return type(module._env).__name__ == "ShardingEnv2D"

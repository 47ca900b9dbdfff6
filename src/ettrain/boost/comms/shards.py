"""Sharded tensors whose global metadata each rank builds by itself, from the sharding that all ranks know, instead of gathering it.

`ShardedTensor._init_from_local_shards` gathers an object per tensor from all ranks; with a thousand tables on hundreds of ranks that is
a thousand collectives whose result every rank could have computed. What the gathering also did, finding ranks that disagree, is what
`check=True` does: use it once, in a test.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed._shard.sharded_tensor import ShardedTensor, ShardedTensorMetadata, TensorProperties
from torch.distributed.tensor import DTensor, Shard

from ettrain.boost.comms.private import lookup
from ettrain.errors import UsageError

_HOME: Final = "torch.distributed._shard.sharded_tensor"
_LOCALLY: Final = "ShardedTensor._init_from_local_shards_and_global_metadata"
_INSTEAD: Final = "Use torch's init_from_local_shards, which gathers, until ettrain knows this torch."


class MetadataError(RuntimeError):
    """What ranks hold is not what the sharding says."""


def sharded_tensor(
    local_shards: Sequence[Any], sizes: Sequence[int], spec: Any, group: Any = None, *, dtype: Any = None, check: bool = False
) -> Any:
    """Build a `ShardedTensor` from this rank's shards and the sharding of the whole. No collective.

    Args:
        local_shards: `Shard`s of this rank; may be empty.
        sizes: of the whole tensor.
        spec: torch's sharding spec of the whole tensor: the same on all ranks.
        group: process group; None = the default one.
        dtype: of the whole tensor; needed where a rank has no shard.
        check: gather as torch does, and compare: one collective. All ranks must ask for it.
    Returns:
        The same tensor as `torch.distributed._shard.sharded_tensor.init_from_local_shards` builds.
    Raises:
        UsageError: no shard here, and no dtype.
        MetadataError: with `check`, where the gathered metadata is another.
        ValueError: a local shard is not what the spec says of this rank.
        UnsupportedTorchError: this torch cannot build one without gathering.
    """
    if not local_shards and dtype is None:
        raise UsageError("sharded_tensor: this rank has no shard, so it cannot know the dtype. Pass dtype=")
    build = lookup(_HOME, _LOCALLY, _INSTEAD)
    metadata = global_metadata(spec, sizes, properties_of(local_shards, dtype))
    shards = list(local_shards)
    if check:
        check_metadata(metadata, ShardedTensor._init_from_local_shards(shards, *sizes, process_group=group).metadata())
    return build(shards, metadata, process_group=group)


def properties_of(local_shards: Sequence[Any], dtype: Any) -> Any:
    """Properties of the whole tensor, as far as this rank's shards tell; torch's defaults for the rest."""
    if not local_shards:
        return TensorProperties(dtype=dtype)
    tensor = local_shards[0].tensor
    return TensorProperties(dtype=tensor.dtype, requires_grad=tensor.requires_grad, pin_memory=tensor.is_pinned())


def global_metadata(spec: Any, sizes: Sequence[int], properties: Any) -> Any:
    """Metadata of the whole tensor, shards in the order of ranks, as a gathering yields them."""
    built = spec.build_metadata(torch.Size(sizes), properties)
    shards = sorted(built.shards_metadata, key=lambda shard: shard.placement.rank())
    return ShardedTensorMetadata(shards, torch.Size(sizes), properties)


def check_metadata(ours: Any, gathered: Any) -> None:
    """Compare what was built with what was gathered.

    Raises:
        MetadataError: they differ; the text says where.
    """
    if ours.size != gathered.size:
        raise MetadataError(f"size is {tuple(gathered.size)} by what the ranks hold, {tuple(ours.size)} by the sharding")
    if ours.tensor_properties != gathered.tensor_properties:
        raise MetadataError(f"properties are {gathered.tensor_properties} by what the ranks hold, {ours.tensor_properties} by the sharding")
    for index, (mine, theirs) in enumerate(zip(ours.shards_metadata, gathered.shards_metadata, strict=False)):
        if mine != theirs:
            raise MetadataError(f"shard {index} is {theirs} by what the ranks hold, {mine} by the sharding")
    if len(ours.shards_metadata) != len(gathered.shards_metadata):
        raise MetadataError(f"{len(gathered.shards_metadata)} shards are held, the sharding has {len(ours.shards_metadata)}")


def dtensor(local: Any, mesh: Any, placements: Sequence[Any], shape: Sequence[int]) -> Any:
    """Build a `DTensor` from this rank's part. No collective, also where the parts are uneven.

    Without `shape`, `DTensor.from_local` takes every rank's part to be as large as this one's, which is wrong for uneven parts.

    Args:
        local: this rank's part, as `torch.chunk` would cut it.
        mesh: the device mesh.
        placements: one per dimension of the mesh.
        shape: of the whole tensor.
    Raises:
        UsageError: the part is not as large as the placements say.
    """
    expected = _part_of(shape, mesh, placements)
    if tuple(local.shape) != expected:
        raise UsageError(f"dtensor: rank {dist.get_rank()} should hold {expected} of {tuple(shape)}, and holds {tuple(local.shape)}")
    stride = torch.empty(tuple(shape), device="meta").stride()
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride)


def _part_of(shape: Sequence[int], mesh: Any, placements: Sequence[Any]) -> tuple[int, ...]:
    """Shape of this rank's part."""
    part = list(shape)
    for dim, placement in enumerate(placements):
        if isinstance(placement, Shard):
            whole = part[placement.dim]
            chunk = -(-whole // mesh.size(dim))
            part[placement.dim] = min(chunk, max(0, whole - chunk * mesh.get_local_rank(dim)))
    return tuple(part)

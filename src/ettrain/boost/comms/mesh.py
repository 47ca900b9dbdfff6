"""A DeviceMesh over all ranks whose groups come from `process_groups`: one per dimension, made by its members, shared between meshes.

`torch.distributed.device_mesh.init_device_mesh` calls `new_group` on every rank for every group of every dimension, each time anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ettrain.boost.comms.groups import process_groups
from ettrain.errors import UsageError


def mesh(device_type: str, shape: Sequence[int], dim_names: Sequence[str] | None = None) -> Any:
    """Build a mesh of all ranks, in their order.

    Args:
        device_type: "cpu", "cuda", ...
        shape: ranks along each dimension; their product is the number of ranks.
        dim_names: a name per dimension; needed with more than one.
    Returns:
        A `DeviceMesh`, as `init_device_mesh` builds it.
    Raises:
        UsageError: shape or names do not fit.
    """
    size, rank = dist.get_world_size(), dist.get_rank()
    if prod(shape) != size:
        raise UsageError(f"mesh: shape {tuple(shape)} holds {prod(shape)} ranks, the job has {size}")
    if len(dim_names or ()) != len(shape) and (dim_names or len(shape) > 1):
        raise UsageError(f"mesh: {len(dim_names or ())} names for {len(shape)} dimensions; give one per dimension")
    layout = torch.arange(size, dtype=torch.int, device="cpu").view(tuple(shape))
    groups = [process_groups(line) for line in _lines(layout, rank)]
    names = tuple(dim_names) if dim_names else None
    if len(groups) == 1:
        return DeviceMesh.from_group(groups[0], device_type, mesh_dim_names=names)
    return DeviceMesh.from_group(groups, device_type, mesh=layout, mesh_dim_names=names)


def _lines(layout: Any, rank: int) -> list[list[int]]:
    """Per dimension the ranks in line with this one."""
    place = (layout == rank).nonzero()[0].tolist()
    lines = []
    for dim in range(layout.ndim):
        index = [slice(None) if other == dim else at for other, at in enumerate(place)]
        lines.append(layout[tuple(index)].tolist())
    return lines

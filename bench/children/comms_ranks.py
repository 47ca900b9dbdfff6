"""Rank of a real gloo group for `start_comms.py`: the same work the plain way and ours, in turns; rank 0 prints the samples as JSON."""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._shard.sharded_tensor import Shard as Piece
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed._shard.sharding_spec import EnumerableShardingSpec, ShardMetadata
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from ettrain.boost.comms import mesh, process_groups, sharded_tensor

TABLES = 64


def main() -> None:
    warnings.filterwarnings("ignore", category=FutureWarning)  # torch's, of ShardedTensor
    turns = int(sys.argv[1])
    dist.init_process_group("gloo")
    ways = alternatives()
    found: dict[str, dict[str, list[float]]] = {work: {"plain": [], "ours": []} for work in ways}
    for turn in range(turns + 1):
        for work, (plain, ours) in ways.items():
            order = (("plain", plain), ("ours", ours))
            for way, call in order if turn % 2 else order[::-1]:
                took = timed(call)
                if turn:
                    found[work][way].append(took)
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def timed(call: Callable[[], Any]) -> float:
    """Milliseconds from when both ranks begin until both are done."""
    dist.barrier()
    begin = time.perf_counter_ns()
    call()
    dist.barrier()
    return (time.perf_counter_ns() - begin) / 1e6


def alternatives() -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """Work -> (the plain way, ours)."""
    rank, world = dist.get_rank(), dist.get_world_size()
    spec = EnumerableShardingSpec([ShardMetadata([8 * r, 0], [8, 16], f"rank:{r}/cpu") for r in range(world)])
    pieces = [Piece(torch.ones(8, 16), spec.shards[rank])]
    model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(16)])
    weights = [torch.ones(256, 256) for _ in range(32)]
    line = init_device_mesh("cpu", (world,))

    def groups(make: Callable[[list[int]], Any]) -> Callable[[], None]:
        def work() -> None:
            for _ in range(8):
                dist.barrier(group=make(list(range(world))))

        return work

    def often(make: Callable[[], Any], times: int) -> Callable[[], list[Any]]:
        return lambda: [make() for _ in range(times)]

    fresh = count(600)

    def another(ranks: list[int]) -> Any:
        """A group that nobody has asked for before: a timeout of its own."""
        return process_groups(ranks, timeout=timedelta(seconds=next(fresh)))

    names = ("outer", "inner")
    return {
        "8 groups of all ranks, a barrier in each": (groups(dist.new_group), groups(process_groups)),
        "8 groups that have to be made, the same": (groups(dist.new_group), groups(another)),
        "4 meshes of 2 dimensions": (
            often(lambda: init_device_mesh("cpu", (1, world), mesh_dim_names=names), 4),
            often(lambda: mesh("cpu", (1, world), names), 4),
        ),
        f"{TABLES} sharded tables": (
            often(lambda: ShardedTensor._init_from_local_shards(pieces, 8 * world, 16), TABLES),
            often(lambda: sharded_tensor(pieces, (8 * world, 16), spec), TABLES),
        ),
        "DDP of a model of 67 MB (init_sync)": (
            lambda: nn.parallel.DistributedDataParallel(model),
            lambda: nn.parallel.DistributedDataParallel(model, init_sync=False),
        ),
        "distribute_tensor of 32 weights (src_data_rank)": (
            lambda: [distribute_tensor(weight, line, [Shard(0)]) for weight in weights],
            lambda: [distribute_tensor(weight, line, [Shard(0)], src_data_rank=None) for weight in weights],
        ),
    }


main()

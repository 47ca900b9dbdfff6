"""What the ranks exchange before they train, the plain way and ours, in the same run: `python bench/start_comms.py [--quick] [--json FILE]`.

  counts  one rank of 8, 64 and 512, on torch's fake process group: calls of new_group for a mesh of two dimensions made twice, and
          collectives and CPU for sharded tables. A fake group sends nothing, so what the other ranks would have sent is made up, pickled once
          and unpickled as often as a rank would have to; latency and bandwidth come on top of it in a real job.
  times   two real ranks with gloo on this machine, in turns: wall from when both begin until both are done. Groups and meshes are asked
          for again and again, as libraries do, so ours are handed out; what it takes to make them is a line of its own.

Medians over turns. Two ranks on one machine are the least that the plain way can cost: all of it grows with the number of ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from figures import keep, machine, progress, ratio, rows, say, spread
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor, ShardedTensorMetadata, TensorProperties
from torch.distributed._shard.sharding_spec import EnumerableShardingSpec, ShardMetadata
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from turns import CHILDREN

from ettrain.boost.comms import mesh, sharded_tensor

WORLDS = (8, 64, 512)
TABLES = 16


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What the ranks exchange before they train.")
    parser.add_argument("--quick", action="store_true", help="fewer turns")
    parser.add_argument("--json", metavar="FILE", help="also write the figures there")
    arguments = parser.parse_args()
    results: dict[str, Any] = {"machine": machine(), "quick": arguments.quick, "torch": torch.__version__}
    say(f"{results['machine']}, torch {torch.__version__}{' quick' if arguments.quick else ''}")
    results["counts"] = counts(turns=3 if arguments.quick else 9)
    results["times"] = times(turns=3 if arguments.quick else 15)
    keep(arguments.json, results)


# ---- counts, at sizes that are not here


class Counting:
    """Counts calls of new_group and of all_gather_object; answers the latter for ranks that are not there."""

    def __init__(self) -> None:
        self.n: Counter[str] = Counter()
        self.others: list[bytes] = []
        make = c10d._new_group_with_tag

        def new_group(*args: Any, **kwargs: Any) -> Any:
            self.n["new_group"] += 1
            return make(*args, **kwargs)

        def all_gather_object(found: list[Any], mine: Any, group: Any = None) -> None:
            self.n["all_gather_object"] += 1
            self.n["bytes"] += sum(map(len, self.others))
            pickle.dumps(mine)
            found[:] = [pickle.loads(blob) for blob in self.others]

        c10d._new_group_with_tag = new_group
        dist.all_gather_object = c10d.all_gather_object = all_gather_object

    def of(self, call: Callable[[], Any]) -> tuple[Counter[str], float]:
        """(counts, CPU ms) of a call."""
        self.n = Counter()
        begin = time.process_time_ns()
        call()
        return self.n, (time.process_time_ns() - begin) / 1e6


def counts(*, turns: int) -> dict[str, Any]:
    """One rank of many."""
    counting = Counting()
    told: dict[str, Any] = {}
    lines: list[tuple[str, ...]] = [("one rank of", "new_group", "ours", "all_gather_object", "ours", "received", "ours", "CPU ms", "ours")]
    for world in WORLDS:
        progress(f"counts, {world} ranks")
        dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
        groups = [counting.of(lambda make=make: [make(), make()])[0]["new_group"] for make in _meshes(world)]  # type: ignore[misc]
        size = (1024 * world, 64)
        spec = EnumerableShardingSpec([ShardMetadata([1024 * rank, 0], [1024, 64], f"rank:{rank}/cpu") for rank in range(world)])
        pieces = [Shard(torch.empty(1024, 64), spec.shards[0])]
        counting.others = [pickle.dumps(ShardedTensorMetadata([s], torch.Size(size), TensorProperties())) for s in spec.shards]

        def plain(pieces: Any = pieces, size: Any = size) -> None:
            for _ in range(TABLES):
                ShardedTensor._init_from_local_shards(pieces, *size)

        def ours(pieces: Any = pieces, size: Any = size, spec: Any = spec) -> None:
            for _ in range(TABLES):
                sharded_tensor(pieces, size, spec)

        samples = [(counting.of(plain), counting.of(ours)) for _ in range(turns)]
        (theirs, _), (our, _) = samples[-1]
        cpu = [spread([pair[way][1] for pair in samples]).median for way in (0, 1)]
        told[str(world)] = {
            "new_group": groups,
            "all_gather_object": [theirs["all_gather_object"], our["all_gather_object"]],
            "cpu_ms": cpu,
        }
        lines.append((
            str(world), *map(str, groups), str(theirs["all_gather_object"]), str(our["all_gather_object"]),
            f"{theirs['bytes'] / 1e6:.1f} MB", f"{our['bytes'] / 1e6:.1f} MB", *(f"{ms:.1f}" for ms in cpu),
        ))  # fmt: skip
        dist.destroy_process_group()
    say(f"\ncounts: a mesh of 2 dimensions made twice; {TABLES} sharded tables")
    rows(lines)
    return told


def _meshes(world: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    shape, names = (world // 4, 4), ("outer", "inner")
    return lambda: init_device_mesh("cpu", shape, mesh_dim_names=names), lambda: mesh("cpu", shape, names)


# ---- times, of two real ranks


def times(*, turns: int) -> dict[str, Any]:
    """Two ranks with gloo."""
    progress("times, 2 ranks")
    words = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    env = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    done = subprocess.run([*words, str(CHILDREN / "comms_ranks.py"), str(turns)], env=env, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, dict[str, list[float]]] = json.loads(done.stdout.strip().splitlines()[-1])
    say(f"\ntimes: 2 ranks, gloo, wall ms, median of {turns} turns; ratio with its 95% interval")
    lines = [("", "plain", "ours", "ours / plain")]
    told = {}
    for work, ways in found.items():
        plain, ours, between = spread(ways["plain"]).median, spread(ways["ours"]).median, ratio(ways["ours"], ways["plain"])
        lines.append((work, f"{plain:.1f}", f"{ours:.1f}", str(between)))
        told[work] = {"plain_ms": plain, "ours_ms": ours, "ratio": between}
    rows(lines)
    return told


if __name__ == "__main__":
    main()

"""One rank of many that are not there: groups of a mesh, and sharded tables, by torch and by ours. What others would send is made up."""

import json
import sys

import torch
import torch.distributed as dist
from counting import CALLS, count_calls
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor, ShardedTensorMetadata, TensorProperties
from torch.distributed._shard.sharding_spec import EnumerableShardingSpec, ShardMetadata
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from ettrain.boost.comms import mesh, sharded_tensor

TABLES = 5
NEW_GROUP = "_new_group_with_tag"  # what new_group is, however it was imported


def all_gather_object(found, mine, group=None):
    for rank, shard in enumerate(spec.shards):
        found[rank] = ShardedTensorMetadata([shard], mine.size, mine.tensor_properties)


dist.all_gather_object = dist.distributed_c10d.all_gather_object = all_gather_object
def meshes(world):
    shape = (world // 4, 4)
    CALLS.clear()
    init_device_mesh("cpu", shape, mesh_dim_names=("outer", "inner"))
    plain = CALLS[NEW_GROUP]
    CALLS.clear()
    first, again = mesh("cpu", shape, ("outer", "inner")), mesh("cpu", shape, ("a", "b"))
    shared = first.get_group("inner") is again.get_group("b")
    return [plain, CALLS[NEW_GROUP], shared, first["outer"].size(), first.get_coordinate()]


def tables(world):
    mine = [Shard(torch.ones(2, 4), spec.shards[0])]
    CALLS.clear()
    gathered = [ShardedTensor._init_from_local_shards(mine, 2 * world, 4) for _ in range(TABLES)]
    plain = sum(CALLS.values())
    CALLS.clear()
    built = [sharded_tensor(mine, (2 * world, 4), spec) for _ in range(TABLES)]
    pairs = [(a.metadata(), b.metadata()) for a, b in zip(gathered, built, strict=True)]
    return [plain, sum(CALLS.values()), all(a == b and a.tensor_properties == TensorProperties() for a, b in pairs)]


count_calls("all_gather_object", "all_gather", "broadcast", NEW_GROUP)
told = {"meshes": {}, "tables": {}}
for world in map(int, sys.argv[1:]):
    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    spec = EnumerableShardingSpec([ShardMetadata([2 * rank, 0], [2, 4], f"rank:{rank}/cpu") for rank in range(world)])
    told["meshes"][world] = meshes(world)
    told["tables"][world] = tables(world)
    dist.destroy_process_group()
print(json.dumps(told), flush=True)

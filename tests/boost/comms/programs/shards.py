"""Three ranks build sharded tensors by gathering and without, compare them, and save and load what was built."""

import os

import torch
import torch.distributed.checkpoint as dcp
from counting import CALLS, count_calls
from torch.distributed._shard.sharded_tensor import Shard as Piece
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec, EnumerableShardingSpec, ShardMetadata
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard

from ettrain.boost.comms import plan_cache, sharded_tensor
from ettrain.boost.comms.shards import MetadataError, dtensor
from ettrain.errors import UsageError

count_calls("all_gather_object", "all_gather", "broadcast")
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def rows(counts, width=4):
    """A table cut into rows, in an order of shards that is not the ranks'."""
    starts = [sum(counts[:rank]) for rank in range(WORLD)]
    shards = [ShardMetadata([starts[rank], 0], [counts[rank], width], f"rank:{rank}/cpu") for rank in range(WORLD) if counts[rank]]
    return [sum(counts), width], EnumerableShardingSpec(shards[::-1])


def columns():
    """Rank 0 has two of three parts."""
    shards = [ShardMetadata([0, 4 * part], [5, 4], f"rank:{rank}/cpu") for part, rank in enumerate((0, 1, 0))]
    return [5, 12], EnumerableShardingSpec(shards)


def chunks():
    return [7, 4], ChunkShardingSpec(dim=0, placements=[f"rank:{rank}/cpu" for rank in range(WORLD)])


def pieces(sizes, spec):
    """This rank's shards, filled with its rank."""
    metadata = spec.build_metadata(torch.Size(sizes), dcp.metadata.TensorProperties()).shards_metadata
    return [Piece(torch.full(shard.shard_sizes, float(RANK)), shard) for shard in metadata if shard.placement.rank() == RANK]


def compare(sizes, spec):
    local = pieces(sizes, spec)
    CALLS.clear()
    gathered = ShardedTensor._init_from_local_shards(local, *sizes)
    theirs = CALLS["all_gather_object"]
    CALLS.clear()
    built = sharded_tensor(local, sizes, spec, dtype=torch.float32)
    ours = sum(CALLS.values())
    same = built.metadata() == gathered.metadata() and built.sharding_spec() == gathered.sharding_spec()
    return [theirs, ours, same and built.local_shards() == gathered.local_shards()]


def refused(kind, call):
    try:
        call()
    except kind as error:
        return str(error)
    return ""


class Failing:
    def plan(self, module, sharders):
        raise ValueError("no space")


def run(folder):
    told = {
        "rows": compare(*rows([3, 2, 1])),
        "a rank without rows": compare(*rows([3, 0, 1])),
        "columns": compare(*columns()),
        "chunks": compare(*chunks()),
    }
    sizes, spec = rows([3, 2, 1])
    state = {"table": sharded_tensor(pieces(sizes, spec), sizes, spec, check=True)}
    dcp.save(state, checkpoint_id=folder)
    for shard in state["table"].local_shards():
        shard.tensor.zero_()
    dcp.load(state, checkpoint_id=folder)
    told["loaded"] = [shard.tensor.unique().tolist() for shard in state["table"].local_shards()]
    told["no dtype"] = refused(UsageError, lambda: sharded_tensor([], sizes, spec))
    held = rows([2, 3, 1])
    told["ranks disagree"] = refused((MetadataError, ValueError), lambda: sharded_tensor(pieces(*held), sizes, spec, check=True))

    mesh = init_device_mesh("cpu", (WORLD,))
    whole = torch.arange(14.0).view(7, 2)
    part = whole.chunk(WORLD)[RANK]
    CALLS.clear()
    uneven = dtensor(part, mesh, [Shard(0)], (7, 2))
    told["dtensor calls"] = sum(CALLS.values())
    told["dtensor"] = bool((uneven.redistribute(placements=[Replicate()]).to_local() == whole).all()) and tuple(uneven.shape) == (7, 2)
    told["wrong part"] = refused(UsageError, lambda: dtensor(part, mesh, [Shard(0)], (70, 2)))
    told["plan failed"] = refused((ValueError, RuntimeError), lambda: plan_cache(Failing(), folder).collective_plan(torch.nn.Linear(1, 1), []))
    return told

"""Two ranks exchange known things before, in and after their first step."""

import json
import pickle
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed._shard.sharded_tensor import Shard as Piece
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed._shard.sharding_spec import ShardMetadata
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(10, 10)
        self.norm = nn.BatchNorm1d(10)

    def forward(self, x):
        return self.norm(self.first(x))


def setup(folder):
    rank, world = dist.get_rank(), dist.get_world_size()
    again = dist.new_group()
    dist.new_group([0])
    mesh = init_device_mesh("cpu", (world,))
    for _ in range(4):
        distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
    DTensor.from_local(torch.ones(2, 2), mesh, [Shard(0)], run_check=True)
    got = [None] * world
    dist.all_gather_object(got, {"rank": rank})
    dist.all_reduce(torch.ones(1000), group=again, async_op=True).wait()
    if rank == 1:
        time.sleep(0.3)
    dist.barrier()
    for _ in range(3):
        piece = Piece(torch.ones(5, 4), ShardMetadata([5 * rank, 0], [5, 4], f"rank:{rank}/cpu"))
        ShardedTensor._init_from_local_shards([piece], [5 * world, 4])
    model = nn.parallel.DistributedDataParallel(Model())
    dcp.save({"model": model.module.state_dict()}, checkpoint_id=f"{folder}/plain")
    sharded = nn.Linear(8, 8)
    fully_shard(sharded, mesh=mesh)
    full = get_model_state_dict(sharded, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(sharded, full if rank == 0 else {}, options=options)
    init_device_mesh("cpu", (world, 1), mesh_dim_names=("a", "b"))
    init_device_mesh("cpu", (world, 1), mesh_dim_names=("c", "d"))
    return model


def train(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    value = torch.ones(())
    for _ in range(3):
        loss = model(torch.ones(4, 10)).sum()
        dist.all_reduce(value)
        loss.backward()
        optimizer.step()
        dist.broadcast(value, src=0)
    return value


def main():
    dist.init_process_group("gloo")
    value = train(setup(sys.argv[1]))
    if dist.get_rank() == 0:
        same = pickle.loads(pickle.dumps(dist.all_reduce)) is dist.all_reduce
        print(json.dumps({"value": float(value), "name": dist.all_reduce.__qualname__, "same": same}), flush=True)
    dist.destroy_process_group()


main()

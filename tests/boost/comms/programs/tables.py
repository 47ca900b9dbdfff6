# ruff: noqa: E402
"""TorchRec on two ranks: an EmbeddingCollection and managed collisions built with and without gathering; a plan kept between planners."""

import json
import logging
import sys
import warnings

warnings.filterwarnings("ignore")  # TorchRec's own
logging.disable(logging.WARNING)

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from counting import CALLS, count_calls
from torch import nn
from torchrec import EmbeddingCollection, EmbeddingConfig
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.mc_embedding import ManagedCollisionEmbeddingCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingCollection
from torchrec.modules.mc_modules import DistanceLFU_EvictionPolicy, ManagedCollisionCollection, MCHManagedCollisionModule

from ettrain.boost.comms import local_shard_metadata, plan_cache
from ettrain.boost.comms import tables as ours

TABLES = [f"t{index}" for index in range(6)]
KINDS = ["table_wise", "row_wise", "column_wise"]
dist.init_process_group("gloo")
RANK, WORLD = dist.get_rank(), dist.get_world_size()
count_calls("all_gather_object")


class Plain(nn.Module):
    def __init__(self, rows=1001):
        super().__init__()
        configs = [EmbeddingConfig(name=n, embedding_dim=16, num_embeddings=rows, feature_names=[f"f_{n}"]) for n in TABLES]
        self.tables = EmbeddingCollection(device=torch.device("meta"), tables=configs)


class Collisions(nn.Module):
    def __init__(self):
        super().__init__()
        configs = [EmbeddingConfig(name=n, embedding_dim=16, num_embeddings=1000, feature_names=[f"f_{n}"]) for n in TABLES[:2]]
        modules = {
            n: MCHManagedCollisionModule(1000, torch.device("cpu"), DistanceLFU_EvictionPolicy(), 2, 4000) for n in TABLES[:2]
        }  # fmt: skip
        collection = EmbeddingCollection(device=torch.device("meta"), tables=configs)
        self.tables = ManagedCollisionEmbeddingCollection(collection, ManagedCollisionCollection(modules, configs))


def planner(batch_size=512):
    constraints = {n: ParameterConstraints(sharding_types=[KINDS[i % 3]], compute_kernels=["fused"], min_partition=8) for i, n in enumerate(TABLES)}
    topology = Topology(world_size=WORLD, compute_device="cpu", local_world_size=WORLD)
    return EmbeddingShardingPlanner(topology=topology, batch_size=batch_size, constraints=constraints)


def build(model, plan, sharders):
    env = ShardingEnv(WORLD, RANK, dist.group.WORLD)
    return DistributedModelParallel(model, env=env, device=torch.device("cpu"), plan=plan, sharders=sharders)


def shapes(model):
    """Every sharded tensor's metadata, by name."""
    return {name: tensor.metadata() for name, tensor in model.state_dict().items() if hasattr(tensor, "metadata")}


def both_ways(make, plan, sharders):
    CALLS.clear()
    gathered = build(make(), plan, sharders)
    told = [CALLS["all_gather_object"]]
    with local_shard_metadata(check=True) as checked:
        build(make(), plan, sharders)
    CALLS.clear()
    with local_shard_metadata() as done:
        built = build(make(), plan, sharders)
    told += [CALLS["all_gather_object"], done.built, done.gathered, checked.built]
    CALLS.clear()
    build(make(), plan, sharders)
    return [*told, CALLS["all_gather_object"], shapes(built) == shapes(gathered) != {}], built


def kept_plans(folder):
    sharders = [EmbeddingCollectionSharder()]
    told = []
    for batch_size, rows in ((512, 1001), (512, 1001), (256, 1001), (512, 1002)):
        cache = plan_cache(planner(batch_size), folder)
        plan = cache.collective_plan(Plain(rows), sharders)
        told.append([cache.hit, str(plan) == str(planner(batch_size).collective_plan(Plain(rows), sharders))])
    return told


told = {}
sharders = [EmbeddingCollectionSharder()]
plan = planner().collective_plan(Plain(), sharders)
told["tables"], model = both_ways(Plain, plan, sharders)
state = {"model": model.state_dict()}
dcp.save(state, checkpoint_id=f"{sys.argv[1]}/saved")
wanted = {name: [shard.tensor.clone() for shard in tensor.local_shards()] for name, tensor in state["model"].items()}
for tensor in state["model"].values():
    for shard in tensor.local_shards():
        shard.tensor.zero_()
dcp.load(state, checkpoint_id=f"{sys.argv[1]}/saved")
told["loaded"] = all(
    bool((shard.tensor == before).all()) for name, tensor in state["model"].items() for shard, before in zip(tensor.local_shards(), wanted[name], strict=True)
)
sharder = ManagedCollisionEmbeddingCollectionSharder()
per_table = {n: row_wise(compute_kernel="fused") for n in TABLES[:2]}
part = construct_module_sharding_plan(Collisions().tables, per_table, sharder=sharder, local_size=WORLD, world_size=WORLD, device_type="cpu")
told["collisions"], _ = both_ways(Collisions, ShardingPlan({"tables": part}), [sharder])
told["plans"] = kept_plans(f"{sys.argv[1]}/plans")
ours.TESTED_TORCHREC = ("0.",)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    with local_shard_metadata() as done:
        build(Plain(), plan, sharders)
told["unknown version"] = [done.built, any("is not one of those tested" in str(warning.message) for warning in caught)]
print(json.dumps(told), flush=True)
dist.destroy_process_group()

"""Three ranks go through all programs that need ranks, so that torch is imported once in each."""

import json
import os
import sys

import groups
import planning
import shards
import torch.distributed as dist

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), WORLD, RANK == 0)
told = {"groups": groups.run(store)}
dist.init_process_group("gloo", store=dist.PrefixStore("again", store), rank=RANK, world_size=WORLD)
told["shards"] = shards.run(f"{sys.argv[1]}/table")
told["planning"] = planning.run(f"{sys.argv[1]}/planning")
print(json.dumps(told), flush=True)
dist.barrier()
dist.destroy_process_group()

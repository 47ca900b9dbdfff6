"""Functions with collectives in them, compiled: how dynamo took them, and what they computed."""

import json
import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch._dynamo.utils import counters
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))


def captured(x):
    y = x * 2
    dist.all_reduce(y)
    whole, parts = torch.empty(4, 4), [torch.empty(4, 4)]
    dist.all_gather_into_tensor(whole, y)
    dist.all_gather(parts, y)
    z = functional.all_reduce(whole, "sum", dist.group.WORLD) + functional.all_gather_tensor(y, 0, dist.group.WORLD) + parts[0]
    z = z + functional.reduce_scatter_tensor(y, "sum", 0, mesh)
    dist.all_to_all_single(whole, z)
    return z.sin() + whole


def breaking(x):
    y = x * 2
    dist.broadcast(y, 0)
    dist.barrier()
    return y + 1


def redistributing(x):
    return x.redistribute(mesh, [Replicate()]).to_local() + 1


x = torch.ones(4, 4)
functions = {"captured": (captured, x), "breaking": (breaking, x), "redistributing": (redistributing, distribute_tensor(x, mesh, [Shard(0)]))}
if "eager first" in sys.argv:
    captured(x)
result = {}
for name, (function, argument) in functions.items():
    for _ in range(2):
        torch._dynamo.reset()
        counters.clear()
        value = torch.compile(function, backend="aot_eager", fullgraph=name == "captured")(argument).sum().item()
        stats = counters["stats"]
        result[name] = [value, sum(counters["graph_break"].values()), stats.get("unique_graphs"), stats.get("calls_captured")]
print(json.dumps(result), flush=True)

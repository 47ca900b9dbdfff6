"""Compiles what it is told and prints what came of it as JSON. An ordinary program: it knows nothing of ettrain."""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch._dynamo.utils import counters

if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    dist.init_process_group("gloo")
rank = dist.get_rank() if dist.is_initialized() else 0


def one(x):
    return (x.sin() * 2 + x.cos()).sum()


def two(x):
    return (x.exp() + x.tanh() * 3).sum()


def run(function, size):
    x = torch.linspace(0, 1, size * 8).reshape(size, 8).requires_grad_()
    y = torch.compile(function)(x)
    y.backward()
    return [y.item(), x.grad.sum().item()]


told = {}
torch._dynamo.reset()
for word in sys.argv[1:]:
    name, _, size = word.partition(":")
    sizes = [int(part) for part in (size or "4").split(",")]
    told[word] = run({"one": one, "two": two}[name], sizes[rank % len(sizes)])
inductor = counters["inductor"]
told.update(rank=rank, hits=inductor["fxgraph_cache_hit"], misses=inductor["fxgraph_cache_miss"], frames=counters["frames"]["ok"])
print(json.dumps(told), flush=True)
if dist.is_initialized():
    dist.destroy_process_group()

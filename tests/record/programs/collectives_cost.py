"""What recording adds to a collective, ns: before the first step and after it. The fastest of many rounds, around a function that does nothing."""

import json
import time

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from ettrain.record.hooks.collectives import TENSORS, _Arguments, _counted, traffic

dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
value = torch.ones(4)


def all_reduce(tensor, op=None, group=None, async_op=False):
    pass


def cost(function):
    best = 1 << 60
    for _ in range(60):
        begin = time.perf_counter_ns()
        for _ in range(200):
            function(value)
        best = min(best, time.perf_counter_ns() - begin)
    return best / 200


def deep(function, levels):
    return function if not levels else lambda x: deep(function, levels - 1)(x)


counted = _counted(all_reduce, _Arguments(all_reduce, "all_reduce", TENSORS["all_reduce"]))
first = cost(deep(counted, 10)) - cost(deep(all_reduce, 10))
seen = [(key[0], row.n) for key, row in traffic.rows.items() if key[0] == "all_reduce"]
parameter = torch.nn.Parameter(torch.ones(1))
parameter.grad = torch.ones(1)
torch.optim.SGD([parameter], lr=0.1).step()
print(json.dumps({"seen": seen, "on": traffic.on, "first": first, "after": cost(counted) - cost(all_reduce)}), flush=True)

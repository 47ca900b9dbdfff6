"""A custom operator whose gradient is FACTOR; the test writes it anew with another one."""

import json

import torch
from torch._dynamo.utils import counters

FACTOR = 2.0


@torch.library.custom_op("ettrain_test::scaled", mutates_args=())
def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * FACTOR


@scaled.register_fake
def _(x):
    return torch.empty_like(x)


scaled.register_autograd(lambda ctx, grad: grad * FACTOR, setup_context=lambda ctx, inputs, output: None)


@torch.compile
def run(x):
    return scaled(x.sin()).sum()


x = torch.zeros(4, requires_grad=True)
run(x).backward()
print(json.dumps({"grad": x.grad.tolist(), "hits": counters["inductor"]["fxgraph_cache_hit"]}))

"""Batched matrix products under max-autotune. Argument: number of shapes. Last line: JSON."""

import json
import sys

import torch
import torch._inductor.config
import torch._inductor.select_algorithm
from torch._dynamo.utils import counters

torch._inductor.config.max_autotune = True
torch._inductor.select_algorithm.PRINT_AUTOTUNE = False
torch.manual_seed(0)
SHAPES = [(4, 64, 64, 64), (4, 96, 64, 128), (8, 128, 32, 64), (2, 256, 128, 64)][: int(sys.argv[1])]
data = [(torch.randn(b, m, k), torch.randn(b, k, n)) for b, m, k, n in SHAPES]


def products(pairs):
    return [torch.bmm(x, y).relu() for x, y in pairs]


with torch.no_grad():
    found = torch.compile(products)(data)
    worst = max(float((one - other).abs().max()) for one, other in zip(found, products(data), strict=True))
print(json.dumps({"searches": counters["inductor"]["select_algorithm_autotune"], "worst": worst}))

"""Batched matrix products under max-autotune. Arguments: --changed (another graph with the same products), --pin FILE. Last line: JSON."""

import argparse
import json

import torch
import torch._inductor.config
import torch._inductor.select_algorithm
from torch._dynamo.utils import counters

parser = argparse.ArgumentParser()
parser.add_argument("--changed", action="store_true")
parser.add_argument("--pin")
args = parser.parse_args()
if args.pin:
    from ettrain.boost.autotune import pin

    pin(args.pin)
    pin(args.pin)
torch._inductor.config.max_autotune = True
torch._inductor.config.cpp.enable_kernel_profile = False
torch._inductor.select_algorithm.PRINT_AUTOTUNE = False
torch.manual_seed(0)
SHAPES = [(4, 32, 16, 32), (2, 16, 48, 16)]
data = [(torch.randn(b, m, k), torch.randn(b, k, n)) for b, m, k, n in SHAPES]


def products(pairs):
    found = [torch.bmm(x, y).relu() for x, y in pairs]
    return [result.cos() + 1 for result in found] if args.changed else found


with torch.no_grad():
    results = torch.compile(products)(data)
    worst = max(float((result - other).abs().max()) for result, other in zip(results, products(data)))
print(json.dumps({"searches": counters["inductor"]["select_algorithm_autotune"], "worst": worst}))

"""A batched matrix product under max-autotune. Arguments: --changed (another graph with the same product), --rows N. Last line: JSON."""

import argparse
import json

import torch
import torch._inductor.config
import torch._inductor.select_algorithm
from torch._dynamo.utils import counters

parser = argparse.ArgumentParser()
parser.add_argument("--changed", action="store_true")
parser.add_argument("--rows", type=int, default=32)
args = parser.parse_args()
torch._inductor.config.max_autotune = True
torch._inductor.select_algorithm.PRINT_AUTOTUNE = False
torch.manual_seed(0)
x, y = torch.randn(4, args.rows, 16), torch.randn(4, 16, 32)


def product(x, y):
    found = torch.bmm(x, y).relu()
    return found.cos() + 1 if args.changed else found


with torch.no_grad():
    worst = float((torch.compile(product)(x, y) - product(x, y)).abs().max())
print(json.dumps({"searches": counters["inductor"]["select_algorithm_autotune"], "worst": worst}))

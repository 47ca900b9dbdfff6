"""Two ranks that agree, or do not, on the order of their collective stages."""

import os
import sys
import time

import torch
import torch.distributed as dist

import ettrain as ett

start = ett.Startup()


@start.stage(collective=True)
def process_group_init():
    dist.init_process_group("gloo")
    return dist.get_rank()


def one(process_group_init):
    time.sleep(0.3 * process_group_init)  # ready at other moments on each rank
    total = torch.ones(1)
    dist.all_reduce(total)
    return total.item()


def two(process_group_init):
    value = torch.full((1,), 10.0)
    dist.all_reduce(value)
    return value.item()


if __name__ == "__main__":
    declared = [one, two]
    if "differ" in sys.argv and os.environ["RANK"] == "1":
        declared.reverse()
    for function in declared:
        start.stage(collective=True)(function)
    ready = start.run()
    os.write(1, f"rank {ready.process_group_init}: {ready.one} {ready.two}\n".encode())  # one write: the other rank writes too
    dist.destroy_process_group()

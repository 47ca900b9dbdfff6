"""Two ranks of which one has no batch to compile with: no rank may run the step, which would wait for the other."""

import os

import torch
import torch.distributed as dist

import ettrain as ett

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
rank = dist.get_rank()


def step(batch):
    model(batch).sum().backward()


before = [p.clone() for p in model.parameters()]
alone = ett.warm_compile(step, torch.ones(2, 4) if rank else None, model=model)
both = ett.warm_compile(step, torch.ones(2, 4), model=model)
same = all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))
grads = [p.grad for p in model.parameters()]
os.write(1, f"rank {rank}: {alone.ran} {both.ran} {both.guarantee} {same} {grads}\n".encode())  # one write: the other rank writes too
dist.destroy_process_group()
os._exit(0)

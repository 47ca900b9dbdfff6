"""Two ranks train under DDP and FSDP2, with a warm step ahead and without: the same bits, and no step more."""

import json
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import ettrain as ett

dist.init_process_group("gloo")
rank = dist.get_rank()


def built(how):
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 1))
    if how == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    fully_shard(model[0])
    fully_shard(model[3])
    return fully_shard(model)


def trained(how, *, warm):
    model = built(how)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    batches = [torch.rand(4, 8) for _ in range(4)]

    def step(batch):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    if warm:
        result = ett.warm_compile(step, batches[3])
        assert result.ran and result.guarantee, result
        assert all(p.grad is None for p in model.parameters()) and not optimizer.state
    for batch in batches[:3]:
        step(batch)
    values = [*model.parameters(), *model.buffers(), *(value for state in optimizer.state.values() for value in state.values()), torch.get_rng_state()]
    return [(value.to_local() if hasattr(value, "to_local") else value).detach().clone() for value in values]


same = {}
for how in ("ddp", "fsdp"):
    plain, warmed = trained(how, warm=False), trained(how, warm=True)
    same[how] = len(plain) == len(warmed) and all(torch.equal(one, other) for one, other in zip(plain, warmed, strict=True))
os.write(1, f"rank {rank}: {json.dumps(same)}\n".encode())  # one write: the other rank writes too
dist.destroy_process_group()

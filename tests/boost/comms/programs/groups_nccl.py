"""Two ranks with NCCL and a bound device: a group of both, and one of each alone, made by its members."""

import json
import os
from datetime import timedelta

import torch
import torch.distributed as dist

import ettrain as ett

rank = int(os.environ["RANK"])
device = torch.device("cuda", rank)
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device, timeout=timedelta(seconds=60))
groups = [ett.process_groups([rank]), ett.process_groups(timeout=timedelta(seconds=50))]
sums = []
for group in groups[::-1] if rank else groups:
    value = torch.full((4,), float(10**rank), device=device)
    dist.all_reduce(value, group=group)
    sums.append(value[0].item())
print(json.dumps({"sums": sums[::-1] if rank else sums, "bound": str(dist.group.WORLD.bound_device_id)}), flush=True)
dist.destroy_process_group()

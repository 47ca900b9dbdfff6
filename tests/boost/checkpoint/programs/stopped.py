"""A small training that saves by `ett.Checkpointer` and is stopped from outside: `python stopped.py FOLDER STEPS`, alone or under torchrun."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import ettrain as ett

FOLDER, STEPS = sys.argv[1], int(sys.argv[2])
RANK = int(os.environ.get("RANK", "0"))
torch.manual_seed(0)
torch.set_num_threads(1)
if "RANK" in os.environ:
    dist.init_process_group("gloo")
model = torch.nn.Linear(8, 1)
if dist.is_initialized():
    model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(4000, 8), torch.arange(4000))
sampler = torch.utils.data.DistributedSampler(data, shuffle=False) if dist.is_initialized() else None
loader = DataLoader(data, batch_size=4, sampler=sampler)
ckpt = ett.Checkpointer(FOLDER, model=model, optimizer=optimizer, loader=loader, every=os.environ.get("EVERY") or None)
start = ckpt.restore()
print(f"rank {RANK} starts at {start}", flush=True)
for step, (x, _) in ckpt.steps(start=start):
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == start:
        print(f"rank {RANK} trains", flush=True)
    time.sleep(0.02)
    if step + 1 >= STEPS:
        break
ckpt.close()
print(f"rank {RANK} finished at {step + 1}", flush=True)
if dist.is_initialized():
    dist.destroy_process_group()

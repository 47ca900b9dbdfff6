"""Two ranks that save a sharded state with dcp.save and know nothing of ettrain; the disk is slow where DISK says so. Usage: sharded.py FOLDER [WAY]."""

import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

FOLDER, WAY = sys.argv[1], "".join(sys.argv[2:])
FSYNC = os.fsync


def slow_fsync(descriptor):
    time.sleep(float(os.environ.get("DISK", "0")))
    FSYNC(descriptor)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    optimizer = torch.optim.AdamW(model.parameters())
    seen = {}
    os.fsync = slow_fsync
    for step in range(1, 5):
        optimizer.zero_grad()
        model(torch.ones(2, 64)).sum().backward()
        optimizer.step()
        weights, moments = get_state_dict(model, optimizer)
        os.path.exists(f"{FOLDER}/step-{step - 1}/.metadata")  # the save before is done
        begun = time.monotonic()
        metadata = dcp.save({"model": weights, "optimizer": moments, "step": step}, checkpoint_id=f"{FOLDER}/step-{step}")
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1.0)  # at once: what was saved must not show it
        if step == 4:
            seen["returned_s"] = time.monotonic() - begun
            if WAY == "killed" and rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.zeros(1))
    dist.barrier()
    seen["done_s"] = time.monotonic() - begun
    seen["names"] = sorted(os.listdir(f"{FOLDER}/step-4"))
    seen["tensors"] = len(metadata.state_dict_metadata)
    if WAY == "again":
        dcp.save({"model": weights, "step": 5}, checkpoint_id=f"{FOLDER}/step-4")
        seen["names again"] = sorted(os.listdir(f"{FOLDER}/step-4"))
    if rank == 0:
        print(json.dumps(seen), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

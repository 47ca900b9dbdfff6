"""A training script: two steps, a checkpoint, a publication, an exit. Its model is the script's own."""

import os
import sys
import warnings

import pubmodels
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import ettrain as ett


class Own(pubmodels.Ranker):
    pass


def build():
    return Own()


def main():
    warnings.simplefilter("ignore")
    checkpoint, to, export, *more = sys.argv[1:]
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _, inputs in ett.steps([pubmodels.batch(), pubmodels.batch()]):
        optimizer.zero_grad()
        model(*inputs).mean().backward()
        optimizer.step()
    dcp.save({"model": model.state_dict()}, checkpoint_id=checkpoint)
    reference = torch.zeros(12, 1) if "wrong" in more else model
    ett.publish(checkpoint, to=to, model=build, batch=pubmodels.batch(), reference=reference, export=export, name="ranker")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""A training under `ett.Checkpointer` that ends with a publication."""

import sys
import warnings

import pubmodels
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import ettrain as ett


def main():
    warnings.simplefilter("ignore")
    folder, to, export = sys.argv[1:]
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = pubmodels.build()
    forward = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(*pubmodels.batch(48))
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
    with ett.Checkpointer(folder, model=model, optimizer=optimizer, loader=loader, every=2) as ckpt:
        start = ckpt.restore()
        for _, (dense, ids) in ckpt.steps(start=start):
            optimizer.zero_grad()
            forward(dense, ids).mean().backward()
            optimizer.step()
    ett.publish(folder, to=to, model=pubmodels.build, batch=pubmodels.batch(), reference=model, export=export, name="ranker")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

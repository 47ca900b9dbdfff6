"""Saves and restores one model in every wrapping, in a process group of one; prints a line per wrapping: its name, and what differed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec
from torch.nn.parallel import DistributedDataParallel

import ettrain


class Model(nn.Module):
    """A submodule that bears a wrapper's name, and weights that two modules share."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(3, 3)
        self.table = nn.Embedding(5, 3)
        self.out = nn.Linear(3, 5)
        self.out.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.module(self.table(ids)))


class Sharded(nn.Module):
    """With a table as TorchRec keeps it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))
        self.table = sharded_tensor.rand(ChunkShardingSpec(dim=0, placements=["rank:0/cpu"]), 8, 4)
        self._register_state_dict_hook(sharded_tensor.state_dict_hook)
        self._register_load_state_dict_pre_hook(sharded_tensor.pre_load_state_dict_hook, with_module=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.weight * ids.numel()


def compiled(model: nn.Module) -> Any:
    return torch.compile(model, backend="eager")


def inside(model: nn.Module) -> nn.Module:
    model.module = compiled(model.module)
    return DistributedDataParallel(model)


WRAPPINGS: dict[str, Callable[[], nn.Module]] = {
    "plain": Model,
    "compiled": lambda: compiled(Model()),
    "ddp": lambda: DistributedDataParallel(Model()),
    "ddp of compiled": lambda: DistributedDataParallel(compiled(Model())),
    "compiled ddp": lambda: compiled(DistributedDataParallel(Model())),
    "ddp with a compiled part": lambda: inside(Model()),
    "sharded": Sharded,
}


def tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    found = {}
    for name, value in model.state_dict().items():
        found[name] = (value.local_shards()[0].tensor if hasattr(value, "local_shards") else value).detach().clone()
    for index, state in enumerate(optimizer.state.values()):
        found |= {f"{index}.{name}": value.clone() for name, value in state.items()}
    return found


def main() -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    dist.init_process_group("gloo", rank=0, world_size=1)
    for name, make in WRAPPINGS.items():
        folder = Path(sys.argv[1]) / name.replace(" ", "-")
        model = make()
        optimizer = torch.optim.AdamW(model.parameters())
        with ettrain.Checkpointer(folder, model=model, optimizer=optimizer, every=None) as checkpointer:
            model(torch.arange(4)).sum().backward()
            optimizer.step()
            checkpointer.save(1, wait=True)
        saved = tensors(model, optimizer)
        other = make()
        fresh = torch.optim.AdamW(other.parameters())
        with ettrain.Checkpointer(folder, model=other, optimizer=fresh, every=None) as checkpointer:
            step = checkpointer.restore()
        restored = tensors(other, fresh)
        differs = sorted(
            key
            for key in saved.keys() | restored.keys()
            if not torch.equal(saved.get(key, torch.empty(0)), restored.get(key, torch.empty(0)))
        )
        print(f"{name}: step {step}, differs: {differs}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""A small training for the Checkpointer's tests: a model with dropout and running statistics, AdamW, a scheduler, shuffled data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ettrain import Checkpointer

SAMPLES = 64
WIDTH = 32


@dataclass
class Training:
    """What one process trains."""

    model: Any
    optimizer: torch.optim.Optimizer
    scheduler: Any
    loader: DataLoader
    checkpointer: Checkpointer


def training(folder: Path | str, *, width: int = WIDTH, wrap: Any = lambda model: model, seed: int = 0, **more: Any) -> Training:
    """A training as every process of a job makes it."""
    torch.manual_seed(seed)
    model = wrap(nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Dropout(0.2), nn.Linear(width, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.9)
    data = torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(1))
    loader = DataLoader(TensorDataset(data, data.sum(1, keepdim=True), torch.arange(SAMPLES)), batch_size=8, shuffle=True)
    more = {"every": None} | more
    checkpointer = Checkpointer(folder, model=model, optimizer=optimizer, loader=loader, scheduler=scheduler, **more)
    return Training(model, optimizer, scheduler, loader, checkpointer)


def train(one: Training, steps: int, start: int = 0) -> tuple[int, list[int]]:
    """Train up to so many steps in all; returns the steps done and the ids trained on."""
    ids: list[int] = []
    done = start
    while done < steps:
        for _, batch in one.checkpointer.steps(start=done):
            step(one, batch)
            ids += batch[2].tolist()
            done += 1
            if done >= steps:
                one.checkpointer.stepped(done)
                break
    return done, ids


def step(one: Training, batch: Any) -> float:
    """One step on a batch."""
    one.optimizer.zero_grad()
    loss = (one.model(batch[0]) - batch[1]).square().mean()
    loss.backward()
    one.optimizer.step()
    one.scheduler.step()
    return loss.item()


def tensors(one: Training) -> dict[str, torch.Tensor]:
    """Everything that has to be the same, copied."""
    found = {f"model.{name}": value.detach().clone() for name, value in one.model.state_dict().items()}
    for index, state in enumerate(one.optimizer.state.values()):
        found |= {f"optimizer.{index}.{name}": torch.as_tensor(value).clone() for name, value in state.items()}
    found["lr"] = torch.tensor([group["lr"] for group in one.optimizer.param_groups], dtype=torch.float64)
    found["generator"] = torch.get_rng_state()
    return found


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)

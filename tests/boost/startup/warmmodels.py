# ruff: noqa: NPY002 - the global generator is the point
"""A model that keeps state of every kind, a step that changes all of it, and what all of it looks like bit for bit."""

import copy
import random
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

torch.sparse.check_sparse_tensor_invariants.disable()  # the default, said aloud: Adagrad warns otherwise


class Head(nn.Linear):
    def forward(self, hidden):
        return super().forward(hidden).tanh()


class Moody(nn.Module):
    """Batch norm, dropout, sparse embedding, buffers of all kinds, counters."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 8, sparse=True)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.5)
        self.out = Head(8, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.register_buffer("average", torch.zeros(8))
        self.register_buffer("scratch", torch.zeros(3), persistent=False)
        self.calls = 0
        self.history = []
        self.cache = torch.zeros(2)

    def forward(self, ids):
        self.calls += 1
        self.history.append(self.calls)
        self.scratch.add_(random.random())
        self.cache += 1
        hidden = self.drop(self.norm(self.table(ids)))
        self.average = 0.9 * self.average + 0.1 * hidden.detach().mean(0)
        return self.frozen(self.out(hidden))


@dataclass
class Counters:
    step: int = 0
    seen: int = 0


class Trainer:
    def __init__(self, *, compiled=None):
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        self.model = Moody()
        if compiled:
            self.model.out.compile(backend=compiled)
        dense = [p for n, p in self.model.named_parameters() if n != "table.weight" and p.requires_grad]
        self.optimizers = [torch.optim.AdamW(dense, lr=0.01), torch.optim.Adagrad([self.model.table.weight], lr=0.1)]
        self.scheduler = torch.optim.lr_scheduler.LinearLR(self.optimizers[0], 0.1, total_iters=4)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)
        self.generator = torch.Generator().manual_seed(5)
        self.counters = Counters()
        self.losses = []

    def step(self, batch):
        ids, targets = batch
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        noise = float(np.random.rand()) + torch.rand(1, generator=self.generator).item()
        loss = cross_entropy(self.model(ids), targets) * (1 + 0.01 * noise)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizers[0])
        self.scaler.step(self.optimizers[0])
        self.optimizers[1].step()
        self.scaler.update()
        self.scheduler.step()
        self.counters.step += 1
        self.counters.seen += len(ids)
        self.losses.append(loss.item())
        return loss

    def everything(self):
        """All state, copied, with the identities that must stay the same."""
        model = self.model
        tensors = {name: tensor for name, tensor in [*model.named_parameters(), *model.named_buffers()]}
        grads = {name: None if p.grad is None else p.grad for name, p in model.named_parameters()}
        values = {
            "tensors": tensors, "scratch": model.scratch, "cache": model.cache, "grads": grads,
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "schedule": {k: v for k, v in self.scheduler.state_dict().items()}, "scaler": self.scaler.state_dict(),
            "counters": (self.counters.step, self.counters.seen, model.calls, model.history, self.losses),
            "training": [module.training for module in model.modules()],
            "random": (random.getstate(), torch.get_rng_state(), self.generator.get_state(), [str(part) for part in np.random.get_state()]),
        }
        identities = {"tensors": {n: id(t) for n, t in tensors.items()}, "grads": {n: id(g) for n, g in grads.items()}, "pointers": {n: t.data_ptr() for n, t in tensors.items()}}
        return copy.deepcopy(values), identities


def batches(count, size=16):
    generator = torch.Generator().manual_seed(1)
    return [(torch.randint(0, 50, (size,), generator=generator), torch.randint(0, 4, (size,), generator=generator)) for _ in range(count)]


def same(one, other):
    """Bit for bit, at any depth."""
    if isinstance(one, torch.Tensor):
        if one.layout != other.layout or one.dtype != other.dtype or one.shape != other.shape:
            return False
        if one.layout != torch.strided:
            return same(one._indices(), other._indices()) and same(one._values(), other._values())
        if not one.numel():
            return True
        return torch.equal(one.detach().contiguous().view(-1).view(torch.uint8), other.detach().contiguous().view(-1).view(torch.uint8))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other

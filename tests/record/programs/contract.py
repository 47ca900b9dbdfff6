"""Looks up every private name of torch that is used; then trains as if this torch had none of them."""
# ruff: noqa: E402

import importlib
import sys

from ettrain.record import hooks

names = {module: list(found) for module, found in hooks.PRIVATE.items()}
if sys.argv[1] == "gone":
    for module, found in names.items():
        hooks.PRIVATE[module] = tuple(f"{name}_gone" for name in found)
import torch
import torch._dynamo
from lab import tell
from torch.utils.data import DataLoader, TensorDataset

missing = []
for module, found in names.items():
    loaded = importlib.import_module(module)
    for name in found:
        value = loaded
        for part in name.split("."):
            value = getattr(value, part, None)
        if value is None:
            missing.append(f"{module}.{name}")
model = torch.nn.Linear(8, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
compiled = torch.compile(model, backend="eager")
for (x,) in DataLoader(TensorDataset(torch.randn(12, 8)), batch_size=4):
    opt.zero_grad()
    compiled(x).sum().backward()
    opt.step()
from ettrain.record.guard import guard
from ettrain.record.recorder import recorder

tell({"missing": missing, "steps": recorder.steps, "faults": guard.count})

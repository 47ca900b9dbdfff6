"""Trains a few steps, with a warm step ahead or without; says its losses and how often anything was compiled."""

import json
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import ettrain as ett

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import warmmodels  # noqa: E402

mode = sys.argv[1]
trainer = warmmodels.Trainer(compiled="aot_eager" if "compiled" in mode else None)
data = TensorDataset(*(torch.cat(parts) for parts in zip(*warmmodels.batches(6), strict=True)))
loader = DataLoader(data, batch_size=16, num_workers=1)


def step(batch):
    time.sleep(0.05)
    trainer.step(batch)
    ett.step() if "said" in mode else None


if "warm" in mode:
    time.sleep(0.1)
    loader = ett.first_batch(loader)
    result = ett.warm_compile(step, loader.compile_batch, protect=[trainer])
    assert result.guarantee, result.notes
for batch in loader:
    step(batch)
print(json.dumps({"losses": trainer.losses, "graphs": torch._dynamo.utils.counters["stats"]["unique_graphs"] if "compiled" in mode else 0}))

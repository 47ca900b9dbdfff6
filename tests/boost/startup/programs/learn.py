"""Says what the compile batch was made from, trains, and fails the first time."""

import json
import os
import sys

import torch

import ettrain as ett

batches = [(torch.randint(0, 7, (size, 2)), torch.rand(size)) for size in (4, 4, 3)]
model = torch.nn.Sequential(torch.nn.Embedding(7, 1), torch.nn.Flatten(), torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step(batch):
    optimizer.zero_grad()
    (model(batch[0]).squeeze(1) - batch[1]).square().mean().backward()
    optimizer.step()


started = ett.first_batch(batches)
warmed = ett.warm_compile(step, started.compile_batch)
for batch in started:
    step(batch)
print(json.dumps({"source": started.source, "ran": warmed.ran, "notes": started.notes}), flush=True)
if os.environ["ETT_ATTEMPT"] == "0":
    sys.exit("a failure")

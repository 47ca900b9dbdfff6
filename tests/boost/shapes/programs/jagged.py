"""Trains on features whose lengths vary one after another, in batches whose last is smaller; names are those that torch would misread.

Arguments: --kill-at STEP (SIGKILL in the first attempt), --backend. Last line: JSON.
"""

import argparse
import hashlib
import json
import os
import signal

import torch
from torch._dynamo.utils import counters

parser = argparse.ArgumentParser()
parser.add_argument("--kill-at", type=int, default=-1)
parser.add_argument("--backend", default="aot_eager")
args = parser.parse_args()
NAMES = ["a", "b", "a b", "z-a", "it's, so", "x.y[0]"]


class Jagged(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = torch.nn.ModuleList(torch.nn.Embedding(100, 8) for _ in NAMES)
        self.dense = torch.nn.Linear(4, 8)
        self.out = torch.nn.Linear(8 * (len(NAMES) + 1), 1)
        self.gain = 2

    def forward(self, dense, ids, fixed, scale):
        pooled = [table(ids[name]).mean(0, keepdim=True).expand(dense.shape[0], -1) for name, table in zip(NAMES, self.tables)]
        return self.out(torch.cat([self.dense(dense), *pooled], 1)) * scale * self.gain + fixed.sum()


torch._dynamo.config.recompile_limit = 32
torch.manual_seed(0)
model = Jagged()
compiled = torch.compile(model, backend=args.backend)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
lengths = [20] * len(NAMES)
for step in range(len(NAMES) + 4):
    if step == args.kill_at and os.environ.get("ETT_ATTEMPT") == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    if 0 < step <= len(NAMES):
        lengths[step - 1] += 3
    model.gain = 2 if step < len(NAMES) + 2 else 3
    dense = torch.randn(16 if step < len(NAMES) + 3 else 9, 4)
    ids = {name: torch.randint(0, 100, (length,)) for name, length in zip(NAMES, lengths)}
    optimizer.zero_grad()
    loss = compiled(dense, ids, torch.ones(3), 2 if step <= len(NAMES) else 5).sum()
    loss.backward()
    optimizer.step()
state = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
print(json.dumps({"loss": float(loss), "graphs": counters["stats"]["unique_graphs"], "state": hashlib.sha256(state).hexdigest(), "value": os.environ.get("TORCH_COMPILE_DYNAMIC_SOURCES", "")}))

"""A small model over features of varying length, compiled by Inductor, forward and backward; each feature first varies at a step of its
own, an integer changes, the last batch is smaller. Last line: JSON."""

import hashlib
import json
import sys

import torch

FEATURES = int(sys.argv[1]) if len(sys.argv) > 1 else 4


class Jagged(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = torch.nn.ModuleList(torch.nn.Embedding(100, 8) for _ in range(FEATURES))
        self.dense = torch.nn.Linear(4, 8)
        self.top = torch.nn.Sequential(torch.nn.Linear(8 * (FEATURES + 1), 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))

    def forward(self, dense, ids, scale):
        pooled = [table(one).mean(0, keepdim=True).expand(dense.shape[0], -1) for table, one in zip(self.tables, ids, strict=True)]
        return self.top(torch.cat([self.dense(dense), *pooled], 1)) * scale


torch.manual_seed(0)
model = Jagged()
compiled = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
lengths = [20] * FEATURES
for step in range(FEATURES + 4):
    if 0 < step <= FEATURES:
        lengths[step - 1] += 3
    dense = torch.randn(16 if step < FEATURES + 3 else 9, 4)
    ids = [torch.randint(0, 100, (length,)) for length in lengths]
    optimizer.zero_grad()
    loss = compiled(dense, ids, 2 if step < FEATURES + 2 else 5).square().mean()
    loss.backward()
    optimizer.step()
state = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
print(json.dumps({"loss": float(loss), "state": hashlib.sha256(state).hexdigest()}))

"""Models and exports that the tests publish."""

import os
import time
from pathlib import Path

import torch
from torch import nn


class Ranker(nn.Module):
    def __init__(self, rows=500, width=8):
        super().__init__()
        self.table = nn.EmbeddingBag(rows, width, mode="sum")
        self.top = nn.Sequential(nn.Linear(width + 3, 16), nn.ReLU(), nn.Linear(16, 1))
        self.register_buffer("scale", torch.full((1,), 3.0), persistent=False)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, dense, ids):
        return torch.sigmoid(self.top(torch.cat([dense, self.table(ids)], 1)) * self.scale)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(40, 6)
        self.head = nn.Linear(6, 40, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return {"logits": self.head(self.embed(ids)), "size": 40}


def build():
    return Ranker()


def build_wider():
    return Ranker(width=9)


def build_tied():
    return Tied()


def build_large():
    return Ranker(rows=64 * 1024 * 1024 // 4 // 8)


def batch(rows=12):
    generator = torch.Generator().manual_seed(7)
    return torch.randn(rows, 3, generator=generator), torch.randint(0, 500, (rows, 4), generator=generator)


def weights_only(model, folder, batch):
    """A user's export."""
    torch.save(model.state_dict(), folder / "weights.pt")
    served = Ranker().eval()
    served.load_state_dict(torch.load(folder / "weights.pt", weights_only=True))
    return served


def blind(model, folder, batch):
    (folder / "weights.txt").write_text("w")


def nothing(model, folder, batch):
    return None


def moody(model, folder, batch):
    """Fails as often as a file says."""
    count = Path(os.environ["ETT_TEST_MOOD"])
    left = int(count.read_text())
    count.write_text(str(left - 1))
    if left > 0:
        raise OSError(f"mood {left}")
    return weights_only(model, folder, batch)


def wrong(model, folder, batch):
    weights_only(model, folder, batch)
    return lambda *inputs: model(*inputs) + 1.0


def slow(model, folder, batch):
    time.sleep(4)
    return weights_only(model, folder, batch)


def greedy(model, folder, batch):
    return torch.ones(1 << 30)


def leaves(model, folder, batch):
    raise SystemExit(3)


class Answer(dict):
    """Like the outputs of model libraries."""


class Answers(Ranker):
    def forward(self, dense, ids):
        return Answer(score=super().forward(dense, ids))


def build_answers():
    return Answers()


def answers(model, folder, batch):
    torch.save(model.state_dict(), folder / "weights.pt")
    return model

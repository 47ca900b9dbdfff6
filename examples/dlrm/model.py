"""DLRM (Naumov et al., 2019): embeddings and dense features, pairwise interaction, click probability."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from data import NUM_DENSE, NUM_TABLES


def mlp(sizes: list[int]) -> nn.Sequential:
    """Linear layers of the given widths, each followed by a ReLU."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers)


class InteractionNet(nn.Module):
    """The dense part: bottom MLP, dot products of all pairs of vectors, top MLP."""

    pairs: Tensor  # int64 (2, pairs), which two vectors each dot product takes

    def __init__(self, dim: int, bottom: list[int], top: list[int]) -> None:
        super().__init__()
        vectors = NUM_TABLES + 1
        self.bottom = mlp([NUM_DENSE, *bottom, dim])
        self.top = mlp([dim + vectors * (vectors - 1) // 2, *top])
        self.out = nn.Linear(top[-1], 1)
        self.register_buffer("pairs", torch.tril_indices(vectors, vectors, offset=-1), persistent=False)

    def forward(self, dense: Tensor, embedded: Tensor) -> Tensor:
        """Map (batch, 13) and (batch, 26, dim) to logits (batch,)."""
        projected = self.bottom(dense)
        vectors = torch.cat([projected.unsqueeze(1), embedded], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        interactions = products[:, self.pairs[0], self.pairs[1]]
        return self.out(self.top(torch.cat([projected, interactions], dim=1))).squeeze(1)


class DLRM(nn.Module):
    """The whole model. The 26 tables lie one after another in a single sparse-gradient embedding."""

    table_starts: Tensor  # int64 (26,), first embedding row of each table

    def __init__(self, table_size: int, dim: int, bottom: list[int], top: list[int]) -> None:
        super().__init__()
        self.tables = nn.Embedding(NUM_TABLES * table_size, dim, sparse=True)
        nn.init.uniform_(self.tables.weight, -(dim**-0.5), dim**-0.5)
        self.net = InteractionNet(dim, bottom, top)
        self.register_buffer("table_starts", torch.arange(NUM_TABLES) * table_size, persistent=False)

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        """Return click logits (batch,) for dense (batch, 13) and per-table rows (batch, 26)."""
        return self.net(dense, self.tables(categories + self.table_starts))

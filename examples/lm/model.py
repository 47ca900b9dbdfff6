"""A decoder-only transformer over bytes, and its loss."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from data import IGNORED, NUM_TOKENS


class Block(nn.Module):
    """Causal self-attention and a two-layer MLP, each behind a norm and added to its input."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.norm_mlp = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, dim) to the same shape; position i sees positions up to i only."""
        x = x + self.attend(self.norm_attention(x))
        return x + self.mlp(self.norm_mlp(x))

    def attend(self, x: Tensor) -> Tensor:
        """Causal attention. Padding lies on the right, where no real position looks."""
        batch, length, dim = x.shape
        query, key, value = self.qkv(x).view(batch, length, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, dim))


class LanguageModel(nn.Module):
    """Embeddings, blocks, and a projection onto the tokens."""

    def __init__(self, context: int, dim: int, layers: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(NUM_TOKENS, dim)
        self.positions = nn.Embedding(context, dim)
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, NUM_TOKENS)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss (nats per byte) of predicting `targets` (batch, length), those IGNORED left out."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.blocks(self.tokens(tokens) + self.positions(positions))
        logits = self.head(self.norm(hidden))
        return cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)

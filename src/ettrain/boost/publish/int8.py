"""Weights as 8-bit integers: embedding tables by row, linear layers computed in integers with activations quantized as they come.

Made of plain torch operations, so that `torch.export` takes it and whatever runs an exported program runs it: torch's own dynamic
quantization (`torch.ao`) is deprecated and cannot be exported. Not here: whether the error is acceptable (see `exports`).
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional

PRIVATE: Final[dict[str, tuple[str, ...]]] = {"torch": ("_int_mm",)}
"""Multiplies matrices of 8-bit integers; without it linear layers are computed in floating point from 8-bit weights."""
_ROWS: Final = 1 << 16
_TOP: Final = 127.0


class RowTable(nn.Module):  # type: ignore[misc]
    """An embedding table of 8-bit rows, each with its own scale and begin."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        rows, width = weight.shape
        codes = torch.empty(rows, width, dtype=torch.uint8)
        ranges = torch.empty(rows, 2, dtype=torch.float32)
        for begin in range(0, rows, _ROWS):  # in pieces: no second copy of a large table in floating point
            part = weight[begin : begin + _ROWS].to(torch.float32)
            low, high = part.amin(1), part.amax(1)
            scale = ((high - low) / 255.0).clamp_min(1e-12)
            codes[begin : begin + _ROWS] = ((part - low[:, None]) / scale[:, None]).round().clamp(0, 255).to(torch.uint8)
            ranges[begin : begin + _ROWS] = torch.stack([scale, low], 1)
        self.register_buffer("codes", codes)
        self.register_buffer("ranges", ranges)
        self.dtype = weight.dtype

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of the table."""
        ranges = self.ranges[ids]
        return (self.codes[ids] * ranges[..., :1] + ranges[..., 1:]).to(self.dtype)


class RowBag(nn.Module):  # type: ignore[misc]
    """An embedding bag over a `RowTable`: sums or means of rows."""

    def __init__(self, bag: nn.EmbeddingBag) -> None:
        super().__init__()
        self.table = RowTable(bag.weight.detach())
        self.mean, self.last, self.padding = bag.mode == "mean", bag.include_last_offset, bag.padding_idx

    def forward(
        self, ids: torch.Tensor, offsets: torch.Tensor | None = None, per_sample_weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        """As `nn.EmbeddingBag`."""
        rows = self.table(ids)
        weight = torch.ones_like(ids, dtype=rows.dtype) if per_sample_weights is None else per_sample_weights.to(rows.dtype)
        if self.padding is not None:
            weight = weight * (ids != self.padding)
        rows = rows * weight[..., None]
        if offsets is None:
            return rows.sum(1) / weight.sum(1, keepdim=True).clamp_min(1) if self.mean else rows.sum(1)
        begins = offsets[:-1] if self.last else offsets
        bag = torch.bucketize(torch.arange(ids.shape[0]), begins, right=True) - 1
        sums = torch.zeros(begins.shape[0], rows.shape[1], dtype=rows.dtype).index_add(0, bag, rows)
        if not self.mean:
            return sums
        return sums / torch.zeros(begins.shape[0], dtype=rows.dtype).index_add(0, bag, weight)[:, None].clamp_min(1)


class RowLinear(nn.Module):  # type: ignore[misc]
    """A linear layer of 8-bit weights, one scale for each output."""

    def __init__(self, linear: nn.Linear, *, integer: bool = True) -> None:
        super().__init__()
        weight = linear.weight.detach().to(torch.float32)
        scale = (weight.abs().amax(1) / _TOP).clamp_min(1e-12)
        self.register_buffer("codes", (weight / scale[:, None]).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach().clone())
        self.integer = integer and hasattr(torch, "_int_mm")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As `nn.Linear`; the activations of each row are quantized by their own largest value."""
        if not self.integer:
            return functional.linear(x, (self.codes * self.scale[:, None]).to(x.dtype), self.bias)
        flat = x.reshape(-1, x.shape[-1]).to(torch.float32)
        size = (flat.abs().amax(1, keepdim=True) / _TOP).clamp_min(1e-12)
        product = torch._int_mm((flat / size).round().to(torch.int8), self.codes.t())
        y = (product * size * self.scale).reshape(*x.shape[:-1], self.codes.shape[0]).to(x.dtype)
        return y if self.bias is None else y + self.bias


def quantized(model: nn.Module) -> dict[str, Any]:
    """Replace embedding tables and linear layers in place, one at a time.

    Returns:
        What was done: layers by kind, and by name what was left as it is, and why.
    """
    done: dict[str, int] = {}
    left: dict[str, str] = {}
    shared = {id(one) for one in _used_twice(model)}
    for owner_name, owner in list(model.named_modules()):
        for name, module in list(owner.named_children()):
            full = f"{owner_name}.{name}" if owner_name else name
            made, why = _replacement(module, shared)
            if made is not None:
                setattr(owner, name, made)
                done[type(module).__name__] = done.get(type(module).__name__, 0) + 1
            elif why:
                left[full] = why
    return {"quantized": done, "left": left}


def _used_twice(model: nn.Module) -> list[nn.Parameter]:
    seen: dict[int, int] = {}
    parameters = [one for module in model.modules() for one in module._parameters.values() if one is not None]
    for one in parameters:
        seen[id(one)] = seen.get(id(one), 0) + 1
    return [one for one in parameters if seen[id(one)] > 1]


def _replacement(module: nn.Module, shared: set[int]) -> tuple[nn.Module | None, str]:
    """(what takes its place, or why nothing does where it could have been)."""
    if type(module) not in (nn.Linear, nn.Embedding, nn.EmbeddingBag):
        return None, "a subclass of a layer that could be" if isinstance(module, (nn.Linear, nn.Embedding, nn.EmbeddingBag)) else ""
    if id(module.weight) in shared:
        return None, "its weight is shared with another layer"
    if not module.weight.is_floating_point():
        return None, "its weight is not in floating point"
    if isinstance(module, nn.Linear):
        return RowLinear(module), ""
    if module.max_norm is not None:
        return None, "max_norm changes its weight"
    if isinstance(module, nn.Embedding):
        return RowTable(module.weight.detach()), ""
    return (RowBag(module), "") if module.mode in ("sum", "mean") else (None, f"mode {module.mode!r}")

"""A batch made from a description: the same structure, dtypes, shapes and strides; values that the program's operators accept.

Integers stay within the range that was seen (they index tables), short lists of them are replayed as they were (lengths and offsets), and
rising ones rise from the same first to the same last value. What draws here draws from a generator of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ettrain.boost.first.schema import Node


class UnfillableError(ValueError):
    """A description that no batch can be made from here."""


def batch_from(node: Node, kept: list[Tensor] | None = None) -> Any:
    """Make a batch.

    Args:
        node: the description.
        kept: the real values of its tensors, where they were kept.

    Raises:
        UnfillableError: a class is not loaded in this program, or the description is none.
    """
    generator = torch.Generator().manual_seed(0)
    try:
        return _build(node, generator, None if kept is None else iter(kept))
    except UnfillableError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError, StopIteration) as error:
        raise UnfillableError(f"{type(error).__name__}: {error}") from error


def _build(node: Node, generator: torch.Generator, kept: Iterator[Tensor] | None) -> Any:
    if "tensor" in node:
        return _tensor(node["tensor"], generator, None if kept is None else next(kept))
    if "value" in node:
        return node["value"]
    if "list" in node:
        return [_build(item, generator, kept) for item in node["list"]]
    if "tuple" in node:
        return tuple([_build(item, generator, kept) for item in node["tuple"]])
    if "dict" in node:
        return {key: _build(item, generator, kept) for key, item in node["dict"]}
    cls = _class_of(node["class"])
    if node["how"] == "positions":
        return cls(*[_build(item, generator, kept) for item in node["items"]])
    members = {key: _build(item, generator, kept) for key, item in node["items"]}
    return cls(**members) if node["how"] == "names" else cls(members)


def _class_of(path: str) -> Any:
    """A class that the program has loaded; nothing is imported for a file's sake."""
    module, _, name = path.partition(":")
    thing: Any = sys.modules.get(module)
    for part in name.split("."):
        thing = getattr(thing, part, None)
    if not isinstance(thing, type):
        raise UnfillableError(f"this program has no class {path}")
    return thing


def _tensor(node: Node, generator: torch.Generator, kept: Tensor | None) -> Tensor:
    dtype = getattr(torch, node["dtype"])
    shape, stride = tuple(node["shape"]), tuple(node["stride"])
    tensor = torch.empty_strided(shape, stride, dtype=dtype)
    if kept is not None:
        tensor.copy_(kept)
    elif tensor.numel():
        _fill(tensor, node, generator)
    tensor = tensor.to(node["device"])
    return tensor.requires_grad_() if node["requires_grad"] else tensor


def _fill(tensor: Tensor, node: Node, generator: torch.Generator) -> None:
    low, high = node.get("bounds", (0, 0))
    if "values" in node:
        tensor.copy_(torch.tensor(node["values"]))
    elif "rising" in node:
        first, last = node["rising"]
        tensor.copy_(first + torch.arange(tensor.numel()) * (last - first) // max(1, tensor.numel() - 1))
    elif tensor.dtype.is_floating_point and "bounds" in node:
        tensor.copy_(low + (high - low) * torch.rand(tensor.shape, generator=generator, dtype=torch.float64))
    elif "bounds" in node:
        tensor.copy_(torch.randint(low, high + 1, tensor.shape, generator=generator) if high < 1 << 62 else torch.full(tensor.shape, low))
    else:
        tensor.zero_()

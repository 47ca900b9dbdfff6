"""What a batch looks like: its structure, and of each tensor all that torch.compile looks at, with enough of the values to make another.

A description is plain JSON data: a tree whose nodes have one of the keys `tensor`, `list`, `tuple`, `dict`, `class`, `value`. Not here:
files, and making a batch (see `fill`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor

EXACT_ITEMS: Final = 4096
"""One-dimensional integer tensors up to this length are recorded value by value: lengths and offsets mean something only together."""
_SCALARS: Final = (int, float, str, bool, type(None))

Node = dict[str, Any]


class UndescribableError(TypeError):
    """A batch with something in it that cannot be described."""


def describe(thing: Any) -> Node:
    """The description of a batch.

    Raises:
        UndescribableError: there is something in it that is no tensor, container or scalar.
    """
    if isinstance(thing, Tensor):
        return {"tensor": _describe_tensor(thing)}
    if isinstance(thing, _SCALARS):
        return {"value": thing}
    if isinstance(thing, tuple) and hasattr(thing, "_fields"):
        return {"class": _path_of(type(thing)), "how": "positions", "items": [describe(item) for item in thing]}
    if type(thing) in (list, tuple):
        return {type(thing).__name__: [describe(item) for item in thing]}
    if isinstance(thing, Mapping):
        if not all(isinstance(key, str) for key in thing):
            raise UndescribableError("a mapping whose keys are no texts")
        members = [[key, describe(value)] for key, value in thing.items()]
        return {"dict": members} if type(thing) is dict else {"class": _path_of(type(thing)), "how": "mapping", "items": members}
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        fields = [field.name for field in dataclasses.fields(thing) if field.init]
        members = [[name, describe(getattr(thing, name))] for name in fields]
        return {"class": _path_of(type(thing)), "how": "names", "items": members}
    raise UndescribableError(f"a {type(thing).__module__}.{type(thing).__qualname__}")


def _path_of(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _describe_tensor(tensor: Tensor) -> Node:
    if tensor.layout != torch.strided or type(tensor) not in (Tensor, torch.nn.Parameter):
        raise UndescribableError(f"a {type(tensor).__name__} of layout {tensor.layout}")
    node: Node = {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
        "device": tensor.device.type,
        "requires_grad": tensor.requires_grad,
        "dynamic": [],
    }
    return node | _describe_values(tensor.detach())


def _describe_values(values: Tensor) -> Node:
    if not values.numel() or values.is_complex() or values.is_meta or (values.is_floating_point() and values.element_size() < 2):
        return {}
    if values.dtype.is_floating_point:
        low, high = values.aminmax()
        bounds = [low.item(), high.item()]
        return {"bounds": bounds} if all(map(_is_finite, bounds)) else {}
    if values.dtype == torch.bool:
        values = values.to(torch.uint8)
    if values.dim() == 1 and values.numel() <= EXACT_ITEMS:
        return {"values": values.tolist()}
    low, high = values.aminmax()
    node: Node = {"bounds": [low.item(), high.item()]}
    if values.dim() == 1 and bool((values[1:] >= values[:-1]).all()):
        node["rising"] = [values[0].item(), values[-1].item()]
    return node


def _is_finite(value: float) -> bool:
    return value - value == 0


def tensors_in(thing: Any) -> Iterator[Tensor]:
    """The tensors of a batch, in the order of `nodes_in` its description."""
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, (list, tuple)):
        for item in thing:
            yield from tensors_in(item)
    elif isinstance(thing, Mapping):
        for item in thing.values():
            yield from tensors_in(item)
    elif dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        for field in dataclasses.fields(thing):
            if field.init:
                yield from tensors_in(getattr(thing, field.name))


def nodes_in(node: Node) -> Iterator[Node]:
    """The descriptions of the tensors of a batch."""
    if "tensor" in node:
        yield node["tensor"]
        return
    for key in ("list", "tuple", "dict", "items"):
        for item in node.get(key, ()):
            yield from nodes_in(item[1] if isinstance(item, list) else item)


Signature = tuple[tuple[torch.dtype, torch.Size], ...]


def signature_of(batch: Any) -> Signature:
    """Dtypes and shapes of a batch's tensors: what decides whether it is compiled for again."""
    return tuple((tensor.dtype, tensor.shape) for tensor in tensors_in(batch))


def widen(node: Node, signature: Signature) -> bool:
    """Mark the dimensions in which a further batch differs as dynamic; returns whether any is new.

    A batch of another structure, dtype or number of dimensions changes nothing: it is compiled for by itself.
    """
    nodes = list(nodes_in(node))
    if len(nodes) != len(signature):
        return False
    changed = False
    for tensor, (dtype, shape) in zip(nodes, signature, strict=True):
        if len(shape) != len(tensor["shape"]) or str(dtype) != f"torch.{tensor['dtype']}":
            continue
        for dim, (one, other) in enumerate(zip(tensor["shape"], shape, strict=True)):
            if one != other and dim not in tensor["dynamic"]:
                tensor["dynamic"].append(dim)
                changed = True
    return changed


def inherit(node: Node, earlier: Node) -> None:
    """Take over the dynamic dimensions of an earlier description of batches like this one."""
    for mine, theirs in zip(nodes_in(node), nodes_in(earlier), strict=False):
        if mine["dtype"] != theirs["dtype"] or len(mine["shape"]) != len(theirs["shape"]):
            return
        mine["dynamic"] = sorted({*mine["dynamic"], *theirs["dynamic"]} & set(range(len(mine["shape"]))))


def same_shapes(node: Node, other: Node) -> bool:
    """Whether two descriptions differ in nothing that torch.compile looks at."""
    return bool(_shapes(node) == _shapes(other))


def _shapes(node: Node) -> Any:
    keys = ("dtype", "shape", "stride", "device", "requires_grad", "dynamic")
    return [[tensor[key] for key in keys] for tensor in nodes_in(node)]

"""The recorded batch and the training model's outputs on it: written so that reading them runs no code, and compared.

Not here: where they come from.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ettrain.boost.checkpoint import marks
from ettrain.errors import UsageError

_PLAIN = (bool, int, float, str, type(None), torch.dtype)


class Recorded(NamedTuple):
    """What the model was shown, and what it answered."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: Any
    """None = nobody said."""


class Difference(NamedTuple):
    """How far outputs are from what was recorded."""

    worst: float
    """Largest absolute difference."""
    scale: float
    """Largest absolute value recorded."""
    beyond: float
    """Largest difference minus what the tolerance allows there; <= 0 = within."""
    why: str
    """Why they cannot be compared, '' = they can."""


def pack(batch: Any, outputs: Any) -> bytes:
    """A batch and outputs as a file's content.

    Args:
        batch: a tensor or a tuple (positional arguments), or a dict (keyword arguments) of tensors, numbers, texts and lists of them.
        outputs: what the training model answers; a tensor, or such a structure. None = not recorded.

    Raises:
        UsageError: they hold something that cannot be read back without running code.
    """
    kwargs = plain(batch, "batch") if isinstance(batch, Mapping) else {}
    args = (
        ()
        if isinstance(batch, Mapping)
        else tuple(plain(one, "batch") for one in (batch if isinstance(batch, (tuple, list)) else (batch,)))
    )
    file = io.BytesIO()
    with marks.apart():  # no checkpoint of the training's
        torch.save({"args": args, "kwargs": kwargs, "outputs": plain(outputs, "reference")}, file)
    return file.getvalue()


def unpack(path: Path) -> Recorded:
    """What `pack` wrote."""
    told = torch.load(path, map_location="cpu", weights_only=True)
    return Recorded(tuple(told["args"]), dict(told["kwargs"]), told["outputs"])


def plain(value: Any, role: str) -> Any:
    """A structure of tensors on the CPU, numbers and texts, which can be read back without running code.

    Raises:
        UsageError: it holds something else.
    """
    if isinstance(value, torch.Tensor):
        if hasattr(value, "device_mesh") or type(value) not in (torch.Tensor, torch.nn.Parameter):
            raise UsageError(f"{role}: holds a {type(value).__name__}: give whole tensors, e.g. with full_tensor().")
        return value.detach().to("cpu", copy=True).contiguous()
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(one, role) for key, one in value.items()}
    if isinstance(value, tuple):
        return tuple(plain(one, role) for one in value)
    if isinstance(value, list):
        return [plain(one, role) for one in value]
    raise UsageError(
        f"{role}: holds a {type(value).__name__}, which cannot be read back without running code. Give tensors, or tuples and dicts of them."
    )


def difference(outputs: Any, recorded: Any, tolerance: tuple[float, float]) -> Difference:
    """Compare outputs with what was recorded.

    Args:
        outputs: the published model's.
        recorded: the training model's.
        tolerance: (absolute, relative): allowed is absolute + relative * |recorded|, element by element.
    """
    pairs = list(_pairs(outputs, recorded, "outputs"))
    why = next((pair for pair in pairs if isinstance(pair, str)), "")
    if why or not pairs:
        return Difference(math.inf, 0.0, math.inf, why or "the recorded outputs hold no tensor")
    worst = scale = 0.0
    beyond = -math.inf
    for found, expected in (pair for pair in pairs if not isinstance(pair, str)):
        if expected.numel():
            gap, size, over = _gap(found, expected, tolerance)
            worst, scale, beyond = max(worst, gap), max(scale, size), max(beyond, over)
    return Difference(worst, scale, beyond, "")


def _gap(found: torch.Tensor, expected: torch.Tensor, tolerance: tuple[float, float]) -> tuple[float, float, float]:
    one, other = found.detach().to(torch.float64), expected.to(torch.float64)
    same = (one == other) | (one.isnan() & other.isnan())
    gap = torch.where(same, 0.0, (one - other).abs()).nan_to_num(nan=math.inf, posinf=math.inf)
    size = other.abs().nan_to_num(nan=0.0, posinf=0.0)
    return float(gap.max()), float(size.max()), float((gap - tolerance[0] - tolerance[1] * size).max())


def _pairs(found: Any, expected: Any, way: str) -> Iterator[tuple[torch.Tensor, torch.Tensor] | str]:
    """Tensors side by side, or in words why there are none."""
    if isinstance(expected, torch.Tensor):
        if not isinstance(found, torch.Tensor):
            yield f"{way} is a {type(found).__name__}, the training model gave a tensor"
        elif found.shape != expected.shape:
            yield f"{way} has shape {list(found.shape)}, the training model gave {list(expected.shape)}"
        else:
            yield found, expected
    elif isinstance(expected, Mapping):
        names = set(expected) ^ set(found) if isinstance(found, Mapping) else set(expected)
        if names:
            yield f"{way} lacks or adds {sorted(map(str, names))}"
            return
        for name, one in expected.items():
            yield from _pairs(found[name], one, f"{way}[{name!r}]")
    elif isinstance(expected, (tuple, list)):
        if not isinstance(found, (tuple, list)) or len(found) != len(expected):
            yield f"{way} is no sequence of {len(expected)}"
            return
        for index, one in enumerate(expected):
            yield from _pairs(found[index], one, f"{way}[{index}]")


def first_sizes(recorded: Recorded) -> list[torch.Tensor]:
    """The tensors of the batch that have a first dimension."""
    return [tensor for tensor in _leaves((recorded.args, recorded.kwargs)) if tensor.dim()]


def _leaves(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _leaves(one)
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from _leaves(one)


def answer(model: Callable[..., Any], recorded: Recorded) -> Any:
    """What `model` answers to the batch."""
    with torch.no_grad():
        return model(*recorded.args, **recorded.kwargs)

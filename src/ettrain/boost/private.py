"""The private names of torch that the start's parts use. Each is looked up when it is needed; where one is missing, what needs it is not done."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, Final

PRIVATE: Final[dict[str, tuple[str, ...]]] = {
    "torch._dynamo": ("maybe_mark_dynamic",),
    "torch._dynamo.utils": ("counters",),
}
"""Module of torch -> names; a contract test looks them up in the torch at hand. `torch._C._cuda_getDevice` is there in builds for CUDA only."""


def current_cuda_device() -> int:
    """The calling thread's CUDA device; 0 where there is none, or torch does not tell. Does not touch the device, as the public function would."""
    ask = getattr(sys.modules.get("torch._C"), "_cuda_getDevice", None)
    if ask is None:
        return 0
    try:
        return int(ask())
    except RuntimeError:  # a build for CUDA on a machine without
        return 0


def mark_dynamic(tensor: Any, dims: list[int]) -> bool:
    """Tell torch.compile that these dimensions vary; False where this torch cannot be told."""
    mark = getattr(import_module("torch._dynamo"), "maybe_mark_dynamic", None)
    if mark is None:
        return False
    mark(tensor, dims)
    return True


def graphs_compiled() -> int | None:
    """Graphs that torch.compile made in this process so far; None where this torch does not tell."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return 0
    try:
        return int(utils.counters["stats"]["unique_graphs"])
    except (AttributeError, KeyError, TypeError):
        return None

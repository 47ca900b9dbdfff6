"""The random number generators of one rank, in values that load without running code."""

from __future__ import annotations

import sys
from typing import Any, Final

import torch

from ettrain.boost import generators

_NUMPY: Final = "numpy.random"


def capture() -> dict[str, Any]:
    """The states now."""
    states = generators.take()
    if _NUMPY in states:
        kind, words, *rest = states[_NUMPY]
        states[_NUMPY] = [str(kind), torch.from_numpy(words.astype("int64")), *rest]
    return states


def put_back(states: dict[str, Any]) -> None:
    """Set the generators to states that `capture` returned; those that this process does not have are left out."""
    states = {name: state for name, state in states.items() if name.partition(".")[0] != "numpy" or _NUMPY in sys.modules}
    if _NUMPY in states:
        kind, words, *rest = states[_NUMPY]
        states[_NUMPY] = (kind, words.numpy().astype("uint32"), *rest)
    if "random" in states:
        version, words, gauss = states["random"]
        states["random"] = (version, tuple(words), gauss)
    for device in ("cuda", "xpu"):
        there = getattr(torch, device, None)
        if f"torch.{device}" in states and (there is None or not there.is_available()):
            del states[f"torch.{device}"]
    generators.put_back(states)

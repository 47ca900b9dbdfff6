"""A training's state at one instant, taken without copying what only the optimizer's step will change.

The instant is between two steps. What the next step's optimizer changes (parameters and its own state: nearly all of the bytes) is
referred to, and copied on a background thread while the next forward and backward run; the step waits for that. Everything else is
copied at once. Not here: where it is copied to (see `staging`).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from ettrain.boost.checkpoint.state import TrainState, address

LARGE: Final = 64 << 20
"""Bytes. More than that is not copied twice: the loop waits until it is staged."""
_PLAIN: Final = (int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.device)


@dataclass(slots=True)
class Snapshot:
    """The state, and what has to hold for it to stay as it was."""

    state: dict[str, Any]
    watched: list[tuple[Any, int]] = field(default_factory=list)
    """Tensors referred to, each with its version then."""
    must_wait: list[str] = field(default_factory=list)
    """What can change before the next optimizer step and was not copied: the loop has to wait until all is staged."""

    def torn(self) -> bool:
        """Whether a tensor that is referred to has changed since."""
        return any(_version(tensor) != version for tensor, version in self.watched)


def take(training: TrainState) -> Snapshot:
    """The state now."""
    snapshot = Snapshot({})
    still = training.moved_by_step()
    snapshot.state = {name: _kept(value, name, still, snapshot) for name, value in training.collect().items()}
    return snapshot


def _kept(value: Any, name: str, still: set[int], snapshot: Snapshot) -> Any:
    if isinstance(value, torch.Tensor):
        return _tensor(value, name, still, snapshot)
    if isinstance(value, Mapping):
        return {key: _kept(one, f"{name}.{key}", still, snapshot) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_kept(one, name, still, snapshot) for one in value)
    if isinstance(value, _PLAIN):
        return value
    try:
        return copy.deepcopy(value)
    except (TypeError, RuntimeError, copy.Error):  # what cannot be copied, such as a process group inside a sharded tensor
        snapshot.must_wait.append(name)
        return value


def _tensor(tensor: torch.Tensor, name: str, still: set[int], snapshot: Snapshot) -> torch.Tensor:
    if hasattr(tensor, "local_shards"):  # a ShardedTensor, as TorchRec's: updated in the backward pass, and not made to be copied
        snapshot.must_wait.append(name)
        return tensor
    where = address(tensor)
    if where and where in still:
        snapshot.watched.append((tensor, _version(tensor)))
        return tensor
    if tensor.numel() * tensor.element_size() <= LARGE:
        return tensor.detach().clone()
    snapshot.must_wait.append(name)
    return tensor


def _version(tensor: Any) -> int:
    """Counts the changes of a tensor in place; a DTensor's own part has the count."""
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    try:
        return int(local._version)
    except (RuntimeError, AttributeError):  # an inference tensor keeps none
        return 0

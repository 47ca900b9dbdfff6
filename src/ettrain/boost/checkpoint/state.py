"""The state of a training: collected without changing it, and put back into objects that have not trained yet.

Keys are those that torch's own `get_state_dict` gives: `model.<name>`, `optimizer.state.<name>.<key>`, `optimizer.param_groups...`, so
that a checkpoint fits other programs. torch's function for optimizers is not used: on one that has not stepped yet it steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ettrain.boost.checkpoint import nested
from ettrain.errors import CheckpointInvalidError, UsageError

MODEL: Final = "model"
OPTIMIZER: Final = "optimizer"
_WRAPPERS: Final = ("module", "_orig_mod", "_checkpoint_wrapped_module")


class TrainState:
    """What a checkpoint holds of a training.

    Args:
        model: the module that is trained; wrapped in DDP, FSDP2 or torch.compile, or not.
        optimizers: those that train it.
        more: further objects with `state_dict` and `load_state_dict`, by name.

    Raises:
        UsageError: something cannot be saved as it is: what, and why.
    """

    def __init__(self, model: nn.Module | None, optimizers: Sequence[Any], more: Mapping[str, Any]) -> None:
        self.model = model
        self.names = dict(_names(model)) if model is not None else {}
        if model is not None:
            strange = sorted(set(self.names.values()) - set(get_model_state_dict(model)))
            if strange:
                raise UsageError(
                    f"ett.Checkpointer(model=...): {nested.few(strange)} are parameters, and the model's state_dict does not hold them"
                )
        self.plain = [optimizer for optimizer in optimizers if self._is_plain(optimizer)]
        own = [optimizer for optimizer in optimizers if not self._is_plain(optimizer)]
        self.more: dict[str, Any] = {
            _numbered(OPTIMIZER if not self.plain else "other_optimizer", index): one for index, one in enumerate(own)
        }
        for name, value in more.items():
            if name in self.more or name in (MODEL, OPTIMIZER) or "." in name:
                raise UsageError(f"ett.Checkpointer({name}=...): the name is taken. Choose another.")
            if not (callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))):
                raise UsageError(
                    f"ett.Checkpointer({name}=...): {type(value).__name__} has no state_dict and load_state_dict, so its state cannot be saved."
                )
            self.more[name] = value

    def _is_plain(self, optimizer: Any) -> bool:
        """Whether an optimizer is torch's in how it keeps its state, and trains only the model."""
        if not isinstance(optimizer, Optimizer) or type(optimizer).state_dict is not Optimizer.state_dict:
            return False
        strange = [p for group in optimizer.param_groups for p in group["params"] if p not in self.names]
        if strange:
            raise UsageError(
                f"{type(optimizer).__name__} trains {len(strange)} parameters that are not the model's: give ett.Checkpointer(model=...) the module that "
                "holds all of them, as it was when the optimizer was made"
            )
        return True

    def collect(self) -> dict[str, Any]:
        """The state now, by reference: nothing is copied and nothing changes."""
        state: dict[str, Any] = {} if self.model is None else {MODEL: get_model_state_dict(self.model)}
        if self.plain:
            state[OPTIMIZER] = {
                "state": {self.names[p]: dict(one.state[p]) for one in self.plain for p in _params(one) if p in one.state},
                "param_groups": [
                    {**group, "params": [self.names[p] for p in group["params"]]} for one in self.plain for group in one.param_groups
                ],
            }
        return state | {name: value.state_dict() for name, value in self.more.items()}

    def moved_by_step(self) -> set[int]:
        """Storages that nothing but the step of an optimizer of torch's changes, by their addresses: those of its parameters and its
        state, and those of frozen parameters.
        """
        tensors: list[Any] = [value for one in self.plain for p in _params(one) for value in (p, *one.state.get(p, {}).values())]
        tensors += [p for p in self.names if not p.requires_grad]
        return {address(tensor) for tensor in tensors if isinstance(tensor, torch.Tensor)}

    def load(self, metadata: Any, read: Callable[[dict[str, Any]], None]) -> None:
        """Fill the training's objects from a checkpoint.

        Args:
            metadata: DCP's.
            read: called with a flat state dict, which it fills.

        Raises:
            CheckpointInvalidError: the checkpoint is another training's; nothing was changed.
        """
        told: Mapping[str, Any] = metadata.state_dict_metadata
        model = {} if self.model is None else get_model_state_dict(self.model)
        flat: dict[str, Any] = {f"{MODEL}.{name}": value for name, value in model.items()}
        self._fits(flat, told)
        params = {name: param for param, name in self.names.items()}
        ways: dict[str, nested.Way] = {}
        for key in told:
            name, _, _ = key.partition(".")
            if key not in flat and (name in self.more or (name == OPTIMIZER and self.plain)):
                ways[key] = tuple((metadata.planner_data or {}).get(key) or key.split("."))
                flat[key] = self._place(key, ways[key], told[key], params)
        read(flat)
        if self.model is not None:
            # not strict: names and shapes were compared, and sharded tensors, which are filled in place, some modules do not expect
            set_model_state_dict(self.model, {name: flat[f"{MODEL}.{name}"] for name in model}, options=StateDictOptions(strict=False))
        if self.plain:
            self._load_optimizers(_filled({}, ways, flat, OPTIMIZER))
        for name, value in self.more.items():
            value.load_state_dict(_filled(value.state_dict(), ways, flat, name))

    def _fits(self, flat: Mapping[str, Any], told: Mapping[str, Any]) -> None:
        """The checkpoint is of this model: the same names and shapes."""
        where = "the checkpoint"
        missing = [key for key in flat if key not in told]
        if missing:
            raise CheckpointInvalidError(where, f"it is another model's: {nested.few(missing)} not in it")
        surplus = [key for key in told if key.startswith(f"{MODEL}.") and key not in flat]
        if surplus and self.model is not None:
            raise CheckpointInvalidError(where, f"it is another model's: this one has no {nested.few(surplus)}")
        for key, value in flat.items():
            if isinstance(value, torch.Tensor) and tuple(getattr(told[key], "size", value.size())) != tuple(value.size()):
                raise CheckpointInvalidError(where, f"it is another model's: {key} is {tuple(told[key].size)}, here {tuple(value.size())}")
        lost = [name for name in (*([OPTIMIZER] if self.plain else []), *self.more) if not any(key.startswith(f"{name}.") for key in told)]
        if lost and any(not _is_empty(self.more.get(name)) for name in lost):
            raise CheckpointInvalidError(where, f"it holds no state of {nested.few(lost)}")

    def _place(self, key: str, way: Sequence[Any], told: Any, params: Mapping[str, Any]) -> Any:
        """Where a value of the checkpoint is read to: for an optimizer's tensor of a parameter's size, one like that parameter."""
        if getattr(told, "properties", None) is None:
            return None
        dtype = told.properties.dtype
        if tuple(way[:2]) == (OPTIMIZER, "state") and len(way) > 3:
            param = params.get(way[2])
            if param is None:
                raise CheckpointInvalidError("the checkpoint", f"it holds {key}, and no optimizer here trains {way[2]}")
            if tuple(told.size) == tuple(param.size()):
                return torch.zeros_like(param.detach(), dtype=dtype)
            return torch.zeros(told.size, dtype=dtype, device=param.device if self._on_device(param) else "cpu")
        return torch.zeros(told.size, dtype=dtype)

    def _on_device(self, param: Any) -> bool:
        """Whether the optimizer of `param` keeps its step count on the device, as torch does for these kinds."""
        groups = [group for one in self.plain for group in one.param_groups if any(p is param for p in group["params"])]
        return any(group.get("capturable") or group.get("fused") for group in groups)

    def _load_optimizers(self, told: Mapping[str, Any]) -> None:
        of_name = {name: group for group in told.get("param_groups", ()) for name in group["params"]}
        for one in self.plain:
            for group in one.param_groups:
                saved = next((of_name[self.names[p]] for p in group["params"] if self.names[p] in of_name), None)
                if saved is not None:
                    group.update({name: value for name, value in saved.items() if name != "params"})
            for p in _params(one):
                of_param = told.get("state", {}).get(self.names[p])
                if of_param is not None:
                    one.state[p] = dict(of_param)


def _names(model: nn.Module) -> Iterator[tuple[Any, str]]:
    """Parameter -> its name in torch's distributed state dicts, which leave out the names that wrappers add."""
    seen: set[int] = set()
    for name, param in model.named_parameters():
        if id(param) in seen:
            continue
        seen.add(id(param))
        module: Any = model
        kept = []
        for part in name.split("."):
            if not (part in _WRAPPERS and _is_wrapper(module)):
                kept.append(part)
            module = getattr(module, part, None)
        yield param, ".".join(kept)


def _is_wrapper(module: Any) -> bool:
    return isinstance(module, DistributedDataParallel) or hasattr(module, "_orig_mod") or hasattr(module, "_checkpoint_wrapped_module")


def _params(optimizer: Any) -> Iterator[Any]:
    return (param for group in optimizer.param_groups for param in group["params"])


def address(tensor: Any) -> int:
    """Of the memory behind a tensor, a DTensor's own part included; 0 where there is none."""
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    try:
        return int(local.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError, AttributeError):  # a kind of tensor without storage
        return 0


def _numbered(name: str, index: int) -> str:
    return f"{name}{index}" if index else name


def _filled(live: Any, ways: Mapping[str, nested.Way], flat: Mapping[str, Any], name: str) -> Any:
    """The nested state of one object: as it is now, with what the checkpoint holds."""
    known = nested.ways(live, name=name)
    state = nested.copied(live)
    for key, way in sorted(ways.items(), key=lambda pair: [str(part).zfill(12) for part in pair[1]]):
        if way[0] == name:
            nested.put(state, known.get(key, way[1:]), flat[key])
    return state


def _is_empty(value: Any) -> bool:
    return value is not None and not value.state_dict()

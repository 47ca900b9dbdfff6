"""The values of a program's objects, taken before a step and put back after it, each into the very object that held it.

Kept: tensors with their gradients, containers of them at any depth, dataclasses, generators, and of modules all parameters and buffers,
the training mode, and what a class of the program's own keeps in plain attributes. Objects of other kinds are kept as references only.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch import Tensor, nn

LOOSE_BYTES: Final = 64 << 20
"""A tensor that belongs to no module or optimizer is copied up to this size."""
LOOSE_ITEMS: Final = 10_000
"""The same for a container: longer ones are data."""

_PLAIN: Final = (int, float, complex, bool, str, bytes, type(None))


class Keeper:
    """Takes values, each object once, and puts them all back."""

    def __init__(self) -> None:
        self._known: dict[int, Any] = {}
        self._back: list[Callable[[], None]] = []
        self.copies: list[tuple[str, Tensor, Tensor]] = []
        """(name, parameter, copy of its values) of every parameter of a module."""
        self.left_out: list[str] = []
        """What was too large to be kept, in words."""

    def put_back(self) -> None:
        """Every object gets the values that it had.

        Raises:
            Exception: the first failure, after everything else was put back.
        """
        failure: Exception | None = None
        with torch.no_grad():
            for call in self._back:
                try:
                    call()
                except Exception as error:  # noqa: BLE001 - foreign tensors and objects; raised once the rest is in its place
                    failure = failure or error
        if failure is not None:
            raise failure

    def forget(self) -> None:
        """Free the copies."""
        self._known.clear()
        self._back.clear()
        self.copies.clear()

    def _met(self, thing: Any) -> bool:
        if id(thing) in self._known:
            return True
        self._known[id(thing)] = thing
        return False

    # ---- by kind

    def keep(self, thing: Any, *, loose: bool = False) -> None:
        """Keep one object.

        Args:
            thing: any object.
            loose: it belongs to no module or optimizer, so that its size is not bounded by theirs.
        """
        if isinstance(thing, nn.Module):
            self.keep_module(thing)
        elif isinstance(thing, Tensor):
            self._keep_tensor(thing, loose=loose)
        elif isinstance(thing, torch.Generator):
            self._keep_generator(thing)
        elif isinstance(thing, dict):
            self._keep_dict(thing, loose=loose)
        elif isinstance(thing, (list, deque)):
            self._keep_list(thing, loose=loose)
        elif isinstance(thing, set):
            self._keep_set(thing)
        elif isinstance(thing, tuple):
            if not loose or len(thing) <= LOOSE_ITEMS:
                self._all(thing, loose=loose)
        elif dataclasses.is_dataclass(thing) and not isinstance(thing, type) and not self._met(thing):
            self._keep_fields(thing, [field.name for field in dataclasses.fields(thing) if hasattr(thing, field.name)], loose=loose)

    def keep_object(self, thing: Any) -> None:
        """Keep everything that an object holds: an optimizer's state, a scheduler's position."""
        if not self._met(thing):
            self._keep_dict(vars(thing), loose=False)

    def keep_attributes(self, thing: Any, *, loose: bool) -> None:
        """Keep the plain values and containers among an object's attributes: a trainer's counters.

        What it holds besides, and attributes that are new afterwards, may be the work of another thread, and stay.
        """
        if not self._met(thing):
            self._keep_fields(thing, list(getattr(thing, "__dict__", ())), loose=loose)

    def keep_module(self, module: nn.Module) -> None:
        """Keep a module and all modules below it."""
        for prefix, part in module.named_modules():
            if self._met(part):
                continue
            for name, parameter in part._parameters.items():
                if parameter is not None and id(parameter) not in self._known:
                    self._keep_tensor(parameter)
                    if -id(parameter) in self._known:
                        self.copies.append((f"{prefix}.{name}" if prefix else name, parameter, self._known[-id(parameter)]))
            self._keep_dict(part._modules, loose=False, deep=False)
            for members in (part._parameters, part._buffers):
                self._keep_dict(members, loose=False)
            own = not type(part).__module__.startswith("torch.")
            self._keep_fields(part, list(vars(part)) if own else ["training"], loose=True)

    def _keep_tensor(self, tensor: Tensor, *, loose: bool = False) -> None:
        if self._met(tensor):
            return
        if nn.parameter.is_lazy(tensor):
            raise TypeError(
                "the model has lazy parameters that no batch has shaped yet: run it once on a real batch, or give them their shapes"
            )
        if tensor.is_meta or tensor.is_inference():
            return
        if tensor.layout == torch.strided and any(step == 0 < size - 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True)):
            raise TypeError(
                f"a tensor of shape {tuple(tensor.shape)} is expanded: its elements share memory and cannot be put back one by one"
            )
        if loose and tensor.layout == torch.strided and tensor.numel() * tensor.element_size() > LOOSE_BYTES:
            version = tensor._version
            self._back.append(lambda: self._note_if(tensor._version != version, f"a tensor of shape {tuple(tensor.shape)}"))
            return
        alias, copy, wants = tensor.detach(), tensor.detach().clone(), tensor.requires_grad
        self._known[-id(tensor)] = copy
        self._back.append(lambda: _restore_tensor(tensor, alias, copy, requires_grad=wants))
        if tensor.is_leaf:
            self._keep_gradient(tensor)

    def _keep_gradient(self, tensor: Tensor) -> None:
        gradient = tensor.grad
        if gradient is not None:
            self._keep_tensor(gradient)

        def back() -> None:
            if tensor.grad is not gradient:
                tensor.grad = gradient

        self._back.append(back)

    def _keep_generator(self, generator: torch.Generator) -> None:
        if not self._met(generator):
            state = generator.get_state()

            def back() -> None:
                generator.set_state(state)

            self._back.append(back)

    def _keep_dict(self, members: dict[Any, Any], *, loose: bool, deep: bool = True) -> None:
        if self._met(members) or self._too_long(members, loose=loose):
            return
        before = dict(members)

        def back() -> None:
            if len(members) != len(before) or any(
                key is not other or members[key] is not value for (key, value), other in zip(before.items(), members, strict=True)
            ):
                members.clear()
                members.update(before)

        self._back.append(back)
        if deep:
            self._all(before.values(), loose=loose)

    def _keep_list(self, members: list[Any] | deque[Any], *, loose: bool) -> None:
        if self._met(members) or self._too_long(members, loose=loose):
            return
        before = list(members)

        def back() -> None:
            if len(members) != len(before) or any(one is not other for one, other in zip(members, before, strict=True)):
                members.clear()
                members.extend(before)

        self._back.append(back)
        self._all(before, loose=loose)

    def _keep_set(self, members: set[Any]) -> None:
        if self._met(members) or self._too_long(members, loose=True):
            return
        before = set(members)

        def back() -> None:
            if members != before:
                members.clear()
                members.update(before)

        self._back.append(back)

    def _keep_fields(self, thing: Any, names: list[str], *, loose: bool) -> None:
        """Keep attributes that are plain values, and what is in those that are containers."""
        plain = {}
        for name in names:
            value = getattr(thing, name)
            if isinstance(value, _PLAIN):
                plain[name] = value
            else:
                self.keep(value, loose=loose)

        def back() -> None:
            for name, value in plain.items():
                if getattr(thing, name, self) is not value:
                    object.__setattr__(thing, name, value)

        self._back.append(back)

    def keep_cell(self, cell: Any) -> None:
        """Keep a variable that a function shares with the one around it."""
        if self._met(cell):
            return
        value = cell.cell_contents

        def back() -> None:
            cell.cell_contents = value

        self._back.append(back)

    def keep_global(self, space: dict[str, Any], name: str) -> None:
        """Keep a plain value of a module of the program's."""
        value = space[name]
        if isinstance(value, _PLAIN):
            self._back.append(lambda: space.update({name: value}))

    def _all(self, things: Iterable[Any], *, loose: bool) -> None:
        for thing in things:
            if not isinstance(thing, _PLAIN):
                self.keep(thing, loose=loose)

    def _too_long(self, members: Any, *, loose: bool) -> bool:
        size = len(members)
        if not loose or size <= LOOSE_ITEMS:
            return False
        self._back.append(lambda: self._note_if(len(members) != size, f"a {type(members).__name__} of {size} items"))
        return True

    def _note_if(self, changed: bool, what: str) -> None:  # noqa: FBT001 - asked where it stands
        if changed:
            self.left_out.append(what)


def _restore_tensor(tensor: Tensor, alias: Tensor, copy: Tensor, *, requires_grad: bool) -> None:
    if type(alias) is Tensor and tensor.layout == torch.strided and tensor.data_ptr() != alias.data_ptr():
        tensor.data = alias
    tensor.copy_(copy)
    if tensor.is_leaf and tensor.requires_grad != requires_grad:
        tensor.requires_grad_(requires_grad)

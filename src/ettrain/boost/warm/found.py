"""The objects that a step function can change: those it was said to, and those that can be reached from it.

Reached: what the function is bound to, the variables it shares with the function around it, the globals it names, the same for the
program's own functions that it calls by such names, and every optimizer alive that holds a parameter of a module found.
"""

from __future__ import annotations

import functools
import gc
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from torch import Generator, Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset, Sampler

from ettrain.boost.warm.kept import Keeper

DEPTH: Final = 4
"""How far functions that call functions are followed."""
SEARCHED_ITEMS: Final = 1000
"""Longer containers are data: no module is looked for in them."""
_LOADERS: Final = (Dataset, Sampler, DataLoader)
_STATEFUL: Final = (Optimizer, LRScheduler, GradScaler)


class Found:
    """What a step can change."""

    def __init__(self, step: Callable[..., Any], given: Iterable[Any]) -> None:
        self.modules: list[nn.Module] = []
        self.stateful: list[Any] = []
        """Optimizers, schedulers, scalers."""
        self.owners: list[Any] = []
        """Objects that the step is a method of, and whatever else was said to be kept."""
        self.loose: list[Any] = []
        self.cells: list[Any] = []
        self.globals: list[tuple[dict[str, Any], str]] = []
        self._seen: dict[int, Any] = {}
        self._asked: set[int] = set()
        """Owners that the user named: kept whatever their size."""
        for thing in given:
            self._given(thing)
        self._look_into(step, DEPTH)
        self._add_optimizers()

    def keep_all(self) -> Keeper:
        """Take the values of all of it.

        Raises:
            TypeError: something among it cannot be kept.
        """
        keeper = Keeper()
        for module in self.modules:
            keeper.keep_module(module)
        for thing in self.stateful:
            keeper.keep_object(thing)
        for owner in self.owners:
            keeper.keep_attributes(owner, loose=id(owner) not in self._asked)
        for thing in self.loose:
            keeper.keep(thing, loose=True)
        for cell in self.cells:
            keeper.keep_cell(cell)
        for space, name in self.globals:
            keeper.keep_global(space, name)
        return keeper

    def optimizers(self) -> list[Optimizer]:
        """The optimizers among it."""
        return [thing for thing in self.stateful if isinstance(thing, Optimizer)]

    def names(self) -> tuple[str, ...]:
        """Class names of modules, optimizers and the like."""
        return tuple(type(thing).__name__ for thing in [*self.modules, *self.stateful])

    def _new(self, thing: Any) -> bool:
        if id(thing) in self._seen:
            return False
        self._seen[id(thing)] = thing
        return True

    def _given(self, thing: Any) -> None:
        if isinstance(thing, (list, tuple, set)):
            for member in thing:
                self._given(member)
        elif isinstance(thing, dict):
            self._given(list(thing.values()))
        elif thing is not None and not self._take(thing) and self._new(thing):
            if not hasattr(thing, "__dict__"):
                raise TypeError(f"protect: a {type(thing).__name__} has no state that could be kept")
            self._asked.add(id(thing))
            self.owners.append(thing)
            self._members(vars(thing).values())

    def _take(self, thing: Any) -> bool:
        """Take what is of a kind that can be kept by itself; False for anything else."""
        if isinstance(thing, nn.Module):
            if self._new(thing):
                self.modules.append(thing)
        elif isinstance(thing, _STATEFUL):
            if self._new(thing):
                self.stateful.append(thing)
                optimizer = getattr(thing, "optimizer", None)
                if isinstance(optimizer, Optimizer):
                    self._take(optimizer)
        elif isinstance(thing, (Tensor, Generator)):
            if self._new(thing):
                self.loose.append(thing)
        else:
            return False
        return True

    def _members(self, things: Iterable[Any], depth: int = DEPTH) -> None:
        """Take what an object's attributes hold: modules and optimizers, in containers too, and further objects of the program's classes."""
        for thing in list(things) if depth else ():
            if self._take(thing):
                continue
            if isinstance(thing, (list, tuple, dict)):
                if len(thing) <= SEARCHED_ITEMS and self._new(thing):
                    self._members(thing.values() if isinstance(thing, dict) else thing, depth)
            elif hasattr(thing, "__dict__") and _is_the_programs(type(thing)) and self._new(thing):
                self.owners.append(thing)
                self._members(vars(thing).values(), depth - 1)

    def _look_into(self, call: Any, depth: int) -> None:
        if depth == 0 or call is None:
            return
        if not isinstance(call, (types.FunctionType, types.MethodType, functools.partial)):
            self._anything([call], depth)
            return
        if not self._new(call):
            return
        if isinstance(call, functools.partial):
            self._look_into(call.func, depth)
            self._anything([*call.args, *call.keywords.values()], depth)
            return
        if isinstance(call, types.MethodType):
            self._anything([call.__self__], depth)
        function: Any = getattr(call, "__func__", call)
        for name in ("__wrapped__", "_torchdynamo_orig_callable"):
            self._look_into(getattr(function, name, None), depth)
        if isinstance(function, types.FunctionType) and _is_the_programs(function):
            self._variables(function, depth)

    def _variables(self, function: types.FunctionType, depth: int) -> None:
        for cell in function.__closure__ or ():
            try:
                value = cell.cell_contents
            except ValueError:  # not bound yet
                continue
            self.cells.append(cell)
            self._anything([value], depth - 1)
        space = function.__globals__
        for name in _names(function.__code__):
            if name in space:
                self.globals.append((space, name))
                self._anything([space[name]], depth - 1)

    def _anything(self, values: Iterable[Any], depth: int) -> None:
        for value in values:
            if self._take(value):
                continue
            if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
                self._look_into(value, depth)
            elif isinstance(value, (dict, list, set)):
                if self._new(value):
                    self.loose.append(value)
                    self._members(value.values() if isinstance(value, dict) else value)
            elif not isinstance(value, (type, types.ModuleType)) and _is_the_programs(type(value)) and self._new(value):
                self.owners.append(value)
                self._members(vars(value).values() if hasattr(value, "__dict__") else ())

    def _add_optimizers(self) -> None:
        """An optimizer that steps inside some framework's object is not reached by name; but it is alive."""
        ours = {id(parameter) for module in self.modules for parameter in module.parameters()}
        for thing in _living(Optimizer):
            if id(thing) not in self._seen and any(id(parameter) in ours for parameter in _parameters(thing)):
                self._take(thing)
        optimizers = {id(thing) for thing in self.stateful}
        for thing in _living(LRScheduler):
            if id(getattr(thing, "optimizer", None)) in optimizers:
                self._take(thing)

    def homeless(self) -> list[str]:
        """Optimizers with parameters of no module that was found."""
        ours = {id(parameter) for module in self.modules for parameter in module.parameters()}
        return [type(thing).__name__ for thing in self.optimizers() if any(id(parameter) not in ours for parameter in _parameters(thing))]


def _living(kind: type) -> list[Any]:
    return [thing for thing in gc.get_objects() if issubclass(type(thing), kind)]


def _parameters(optimizer: Optimizer) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _names(code: types.CodeType) -> set[str]:
    """Global names that a function's code mentions, the functions inside it included."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names


def _is_the_programs(thing: Any) -> bool:
    """Whether a function or class is the program's own: of no installed package and not Python's, and no part of a loader, which
    works beside the warm step on its own.
    """
    if isinstance(thing, type) and issubclass(thing, _LOADERS):
        return False
    name = str(getattr(thing, "__module__", "") or "")
    if name == "__main__":
        return True
    file = str(getattr(sys.modules.get(name), "__file__", None) or "")
    if name.split(".", 1)[0] in ("torch", "ettrain", "builtins") or name.split(".", 1)[0] in sys.stdlib_module_names:
        return False
    return bool(file) and "site-packages" not in file and "dist-packages" not in file

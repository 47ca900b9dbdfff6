"""Wrapping a function of torch as a stage. The wrapper keeps name, signature and attributes, and what it adds never raises."""

from __future__ import annotations

import functools
import threading
from _thread import get_ident
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from ettrain.record.guard import guard
from ettrain.record.recorder import recorder

F = TypeVar("F", bound=Any)
Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Details = Callable[[Args, Kwargs], dict[str, Any]]


class _Nesting(threading.local):
    depth = 0


nesting = _Nesting()
"""Of wrapped calls inside one another on a thread (torch.save inside dcp.save) only the outermost is a stage; a dataset that
loads files of its own, inside a loader's `__next__`, makes none."""


class Parts:
    """Whole saves under way that may write through other threads: what those threads save are parts of the whole."""

    under_way: ClassVar[set[object]] = set()


def _in_child() -> None:
    nesting.depth = 0
    Parts.under_way.clear()


recorder.at_fork.append(_in_child)


def wraps(function: Any) -> Callable[[F], F]:
    """`functools.wraps` for a function that stands in for one of torch's.

    A warning is blamed on the caller of the function that warns. Python passes over frames of the import machinery when it looks
    for that line, and knows them by these words in their file's name: so it passes over the wrapper as well.
    """

    def decorate(wrapper: F) -> F:
        code = wrapper.__code__
        wrapper.__code__ = code.replace(co_filename=f"{code.co_filename} (as importlib._bootstrap)")
        functools.update_wrapper(wrapper, function)
        return wrapper

    return decorate


@dataclass(frozen=True, slots=True)
class _Stage:
    """What is done around a wrapped function."""

    name: str
    before: Details | None
    after: Details | None
    promote: Callable[[Args, Kwargs], None] | None

    def open(self, more: dict[str, Any], args: Args, kwargs: Kwargs) -> int:
        try:
            if self.promote is not None:
                self.promote(args, kwargs)
            if self.before is not None:
                more.update(self.before(args, kwargs))
        except Exception as error:  # noqa: BLE001 - the guard's rule
            guard.fault(self.name, error)
        try:
            return recorder.open_stage(self.name)
        except Exception as error:  # noqa: BLE001 - the guard's rule
            guard.fault(self.name, error)
            return 0

    def close(self, begin: int, more: dict[str, Any], args: Args, kwargs: Kwargs) -> None:
        try:
            if self.after is not None and "err" not in more:
                more.update(self.after(args, kwargs))
        except Exception as error:  # noqa: BLE001 - the guard's rule
            guard.fault(self.name, error)
        finally:
            try:
                recorder.close_stage(self.name, begin, **more)
            except Exception as error:  # noqa: BLE001 - the guard's rule
                guard.fault(self.name, error)


def staged(
    function: Callable[..., Any],
    name: str,
    *,
    before: Details | None = None,
    after: Details | None = None,
    promote: Callable[[Args, Kwargs], None] | None = None,
) -> Callable[..., Any]:
    """`function` as a stage. `before` and `after` add attributes to its span; `promote` is called first."""
    stage = _Stage(name, before, after, promote)

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if passes():
            return function(*args, **kwargs)
        nesting.depth = 1
        more: dict[str, Any] = {}
        begin = 0
        try:
            begin = stage.open(more, args, kwargs)
            return function(*args, **kwargs)
        except BaseException as error:
            more["err"] = type(error).__name__
            raise
        finally:
            try:
                if begin:
                    stage.close(begin, more, args, kwargs)
            finally:
                nesting.depth = 0

    return wrapper


def passes() -> bool:
    """Whether a call on this thread now is only passed through."""
    return bool(nesting.depth or recorder.off or (Parts.under_way and get_ident() != recorder.main))


def wrap_init(cls: type, stage: str) -> None:
    """Make the construction of `cls` a stage; subclasses and isinstance see the class as it was."""
    cls.__init__ = staged(cls.__init__, stage)  # type: ignore[misc]


def argument(args: Args, kwargs: Kwargs, position: int, name: str) -> Any:
    """A call's argument, however it was passed; None if it was not."""
    return args[position] if len(args) > position else kwargs.get(name)

"""Wrapping a function of torch as a stage. The wrapper keeps name, signature and attributes, and what it adds never raises."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from ettrain.record.guard import guard
from ettrain.record.recorder import recorder

Details = Callable[[tuple[Any, ...], dict[str, Any]], dict[str, Any]]


class _Nesting(threading.local):
    depth = 0


nesting = _Nesting()
"""Of wrapped calls inside one another (torch.save inside dcp.save) only the outermost is a stage."""


class Waiting:
    """Whether the main thread is inside a loader's `__next__`: a dataset that loads files of its own is no checkpoint."""

    inside = False


def staged(
    function: Callable[..., Any],
    stage: str,
    *,
    before: Details | None = None,
    after: Details | None = None,
    promote: Callable[[tuple[Any, ...], dict[str, Any]], None] | None = None,
) -> Callable[..., Any]:
    """`function` as a stage. `before` and `after` add attributes to its span; `promote` is called first."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if nesting.depth or recorder.off or Waiting.inside:
            return function(*args, **kwargs)
        more: dict[str, Any] = {}
        begin = 0
        nesting.depth = 1
        try:
            if promote is not None:
                promote(args, kwargs)
            if before is not None:
                more.update(before(args, kwargs))
            begin = recorder.open_stage(stage)
        except Exception as error:  # noqa: BLE001 - the guard's rule
            guard.fault(stage, error)
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            more["err"] = type(error).__name__
            raise
        finally:
            nesting.depth = 0
            if begin:
                _close(stage, begin, more, after, args, kwargs)
        return result

    return wrapper


def _close(stage: str, begin: int, more: dict[str, Any], after: Details | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    try:
        if after is not None and "err" not in more:
            more.update(after(args, kwargs))
    except Exception as error:  # noqa: BLE001 - the guard's rule
        guard.fault(stage, error)
    try:
        recorder.close_stage(stage, begin, **more)
    except Exception as error:  # noqa: BLE001 - the guard's rule
        guard.fault(stage, error)


def wrap_init(cls: type, stage: str) -> None:
    """Make the construction of `cls` a stage; subclasses and isinstance see the class as it was."""
    cls.__init__ = staged(cls.__init__, stage)  # type: ignore[misc]


def argument(args: tuple[Any, ...], kwargs: dict[str, Any], position: int, name: str) -> Any:
    """A call's argument, however it was passed; None if it was not."""
    return args[position] if len(args) > position else kwargs.get(name)

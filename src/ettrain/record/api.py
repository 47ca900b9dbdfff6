"""`ett.stage`, `ett.step`, `ett.steps`: for code that may be changed. Outside `ett run` they do nothing, at next to no cost."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from ettrain.record import exits
from ettrain.record.guard import guard
from ettrain.record.recorder import now, recorder

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

MAX_NUMBER: Final = 1 << 62

__all__ = ["stage", "step", "steps"]


class stage:  # noqa: N801 - a context manager and decorator, named like the builtins of its kind
    """Mark a stage of the program: `with ett.stage("preproc_creation"): ...` or `@ett.stage("publish")`.

    A marked stage wins over what the recorder finds by itself. One in which steps finish is a frame around them: it is
    shown, and bills nothing.

    Args:
        name: the stage; a name of the lifecycle (e.g. `evaluation`, `publish`) is billed to that component, any other to
            `user code`.
        part: a finer label, shown under the stage.
    """

    __slots__ = ("_begins", "name", "part")

    def __init__(self, name: str, *, part: object = "") -> None:
        self.name = name
        self.part = part
        self._begins: list[tuple[int, int]] = []

    def __enter__(self) -> Self:
        begin = 0
        if not recorder.off:
            try:
                if not _entered:
                    _enter()
                begin = recorder.open_stage(_text(self.name), user=True)
            except Exception as error:  # noqa: BLE001 - the guard's rule
                guard.fault("ett.stage", error)
        self._begins.append((begin, recorder.steps))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        begin, steps_then = self._begins.pop() if self._begins else (0, 0)
        if not begin:
            return
        try:
            part = "" if self.part is None else _text(self.part)
            more: dict[str, Any] = {"part": part} if part else {}
            if kind is not None:
                more["err"] = kind.__name__
            recorder.close_stage(_text(self.name), begin, user=True, steps=recorder.steps - steps_then, **more)
        except Exception as fault:  # noqa: BLE001 - the guard's rule
            guard.fault("ett.stage", fault)

    def __call__(self, function: F) -> F:
        """Mark every call of `function`."""
        name, part = self.name, self.part

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with stage(name, part=part):
                return function(*args, **kwargs)

        return wrapper  # type: ignore[return-value]


def _text(label: object) -> str:
    """A label as text; the type's name where it has none."""
    if isinstance(label, str):
        return label
    try:
        return str(label)
    except Exception:  # noqa: BLE001 - a foreign __str__ may raise anything
        return f"<{type(label).__name__}>"


def step(number: int | None = None) -> None:
    """Say that a step is finished. From the first call on, only such calls count.

    Args:
        number: the step's global index, from 0, where the program keeps one: it is how a resumed program tells where it went on.
    """
    if recorder.off:
        return
    try:
        if not _entered:
            _enter()
        recorder.program_step(None if number is None else _index(number))
    except Exception as error:  # noqa: BLE001 - the guard's rule
        guard.fault("ett.step", error)


def _index(number: object) -> int | None:
    """A step's number, also where it is numpy's; None, and a fault, where it is none."""
    try:
        index = operator.index(number)  # type: ignore[arg-type]
        if 0 <= index < MAX_NUMBER:
            return index
    except TypeError:
        pass
    guard.fault("ett.step", f"not the number of a step: {_text(number)[:50]}")
    return None


def steps(loader: Iterable[T], start: int = 0) -> Iterator[tuple[int, T]]:
    """Iterate over a loader and count a step per batch: `for step, batch in ett.steps(loader, start=resumed): ...`.

    Args:
        loader: any iterable; the time it takes to deliver counts as waiting for data.
        start: global index of the first step.
    Yields:
        (global step index, batch). A step is finished when the loop asks for the next batch; one that is left by `break`
        counts if an optimizer stepped in it.
    """
    begin, batches = now(), recorder.rule.batches
    iterator = iter(loader)
    number = start
    calls = recorder.rule.calls
    finished = True
    try:
        while True:
            try:
                batch = next(iterator)
            except StopIteration:
                return
            _delivered(begin, batches)
            calls, finished = recorder.rule.calls, False
            yield number, batch
            finished = True
            step(number)
            number += 1
            begin, batches = now(), recorder.rule.batches
    finally:
        if not finished and recorder.rule.calls > calls and not recorder.ended:
            step(number)


def _delivered(begin: int, batches: int) -> None:
    """Book the wait, unless a hooked loader has done so."""
    if recorder.off or recorder.rule.batches != batches:
        return
    try:
        if not _entered:
            _enter()
        recorder.rule.batches += 1
        recorder.rule.activity += 1
        if recorder.steps:
            recorder.waited(begin, now())
        else:
            recorder.span("get_first_batch_data", begin, now())
    except Exception as error:  # noqa: BLE001 - the guard's rule
        guard.fault("ett.steps", error)


_entered = False


def _enter() -> None:
    """A program that marks itself is a trainer, whether or not torch was seen."""
    global _entered
    _entered = True
    exits.install(recorder)
    recorder.promote()


def _forget() -> None:
    global _entered
    _entered = False


recorder.at_fork.append(_forget)

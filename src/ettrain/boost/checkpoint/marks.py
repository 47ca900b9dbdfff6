"""What the job's journal hears of checkpoints: what blocked, what became durable and when, and what was gone on from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from ettrain.record.guard import guard
from ettrain.record.hooks.identity import identity_of
from ettrain.record.hooks.wrap import nesting
from ettrain.record.recorder import now, recorder

PART: Final = "ett.Checkpointer"


@contextmanager
def blocked(stage: str, *, part: str = PART, **more: Any) -> Iterator[dict[str, Any]]:
    """The training's loop stands still inside; torch's own loads and saves inside are part of it. What is put into the dict given is told."""
    told: dict[str, Any] = {"part": part, **more}
    begin, outer = _begun(stage), nesting.depth
    nesting.depth = 1
    try:
        yield told
    except BaseException as error:
        told["err"] = type(error).__name__
        raise
    finally:
        nesting.depth = outer
        _ended(stage, begin, told)


@contextmanager
def apart() -> Iterator[None]:
    """On a thread of ours: what torch saves or loads there is no checkpoint of the program's."""
    outer = nesting.depth
    nesting.depth = 1
    try:
        yield
    finally:
        nesting.depth = outer


def numbered() -> dict[str, Any]:
    """What is told of a save when it begins, by which its commit will refer to it."""
    if recorder.off:
        return {}
    try:
        recorder.about_to_save()
        return {"step": recorder.steps, "save": recorder.next_save(), "pending": True}
    except Exception as error:  # noqa: BLE001 - the guard's rule
        guard.fault(PART, error)
        return {}


def identity(path: str) -> dict[str, Any]:
    """By what a checkpoint is known again."""
    try:
        return identity_of(path)
    except Exception as error:  # noqa: BLE001 - the guard's rule
        guard.fault(PART, error)
        return {}


def committed(save: int, begin: int, path: str) -> None:
    """The save of that number is durable; where it is '', it failed."""
    try:
        identity = identity_of(path) if path else {}
        recorder.emit({"k": "commit", "t": now(), "save": save, "ok": bool(path), "id": identity, "begin": begin})
    except Exception as error:  # noqa: BLE001 - the guard's rule
        guard.fault(PART, error)


def _begun(stage: str) -> int:
    if recorder.off:
        return 0
    try:
        return recorder.open_stage(stage)
    except Exception as error:  # noqa: BLE001 - the guard's rule
        guard.fault(PART, error)
        return 0


def _ended(stage: str, begin: int, told: dict[str, Any]) -> None:
    if not begin:
        return
    try:
        recorder.close_stage(stage, begin, **told)
    except Exception as error:  # noqa: BLE001 - the guard's rule
        guard.fault(PART, error)

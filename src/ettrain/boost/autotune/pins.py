"""The winners that a file pins, and what became of each: pinned, or ignored for a reason that is said once."""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from ettrain import clock
from ettrain.errors import UsageError
from ettrain.record.guard import guard
from ettrain.record.recorder import recorder
from ettrain.settings import ENV_AUTOTUNE
from ettrain.tuned import Tuned, from_toml

GEMM_MODULE: Final = "torch._inductor.select_algorithm"
TRITON_MODULE: Final = "triton.runtime.autotuner"
_log = logging.getLogger("ettrain")


class Pins:
    """Winners by what they are for."""

    def __init__(self) -> None:
        self._by_place: dict[tuple[str, tuple[str, ...]], list[Tuned]] = defaultdict(list)
        self._said: set[tuple[str, Tuned]] = set()

    def add(self, winners: Iterable[Tuned]) -> None:
        """Pin these as well; a later one of the same key takes the place of an earlier."""
        for winner in winners:
            place = self._by_place[winner.kind, winner.inputs]
            place[:] = [other for other in place if other.key != winner.key] + [winner]

    def __bool__(self) -> bool:
        return any(self._by_place.values())

    def fitting(self, kind: str, inputs: Iterable[str], device: str, version: str, op: str | None = None) -> list[Tuned]:
        """Winners for these inputs on this device under this version; those for another device or version are ignored, and said."""
        found: list[Tuned] = []
        for winner in self._by_place.get((kind, tuple(inputs)), ()):
            if op is not None and winner.op != op:
                continue
            if (winner.device, winner.version) == (device, version):
                found.append(winner)
            else:
                self.ignored(winner, f"measured on {winner.device} under {winner.version}, this is {device} under {version}")
        return found

    def taken(self, winner: Tuned) -> None:
        """It was pinned."""
        self._tell("pinned", winner, "")

    def ignored(self, winner: Tuned, reason: str) -> None:
        """It does not fit; the search goes on as ever."""
        if self._tell("ignored", winner, reason):
            _log.warning("ettrain: the pinned winner %s of %s is ignored: %s", winner.winner, winner.op, reason)

    def _tell(self, state: str, winner: Tuned, reason: str) -> bool:
        if (state, winner) in self._said:
            return False
        self._said.add((state, winner))
        now = clock.monotonic_ns()
        told = {name: value for name, value in asdict(winner).items() if value not in (None, "")}
        recorder.emit({"k": "tuned", "t": now, **told, "state": state, **({"reason": reason} if reason else {})})
        return True


pins = Pins()
_attached: set[str] = set()


def pin(path: str | os.PathLike[str]) -> int:
    """Pin the winners of a file for this process: call it before the first compilation.

    Args:
        path: a file that `ett autotune JOB --write` wrote.
    Returns:
        Number of winners in it.
    Raises:
        UsageError: the file cannot be read, or is none.
    """
    winners = read(Path(path))
    pins.add(winners)
    attach(import_module(GEMM_MODULE))
    if find_spec("triton") is not None:
        attach(import_module(TRITON_MODULE))
    return len(winners)


def read(path: Path) -> list[Tuned]:
    """The winners in a file.

    Raises:
        UsageError: the file cannot be read, or is none.
    """
    try:
        return from_toml(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None


def attach(module: Any) -> None:
    """Let the pins take hold of a module of torch or triton, once."""
    if module.__name__ in _attached:
        return
    _attached.add(module.__name__)
    part = {GEMM_MODULE: "gemm", TRITON_MODULE: "kernels"}[module.__name__]
    import_module(f"ettrain.boost.autotune.{part}").attach(module, pins)


def attach_asked(module: Any) -> None:
    """The same for a program that knows nothing of it, as `ett run --autotune` asks; called once that module was executed."""
    path = os.environ.get(ENV_AUTOTUNE, "")
    if path and not pins:
        try:
            pins.add(read(Path(path)))
        except UsageError as error:
            guard.fault("autotune file", str(error))
            return
    attach(module)

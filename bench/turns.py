"""Takes turns: runs the measured processes, one burst of one alternative at a time, so that a busy moment of the machine hits them all."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

CHILDREN = Path(__file__).resolve().parent / "children"


class Worker:
    """A process that answers bursts; see `children/bursts.py`."""

    def __init__(self, script: str, *arguments: str, python: Path | None = None, env: Mapping[str, str] | None = None) -> None:
        words = [str(python or sys.executable), str(CHILDREN / script), *arguments]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True)
        self._answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()

    def burst(self, name: str, calls: int, rest_s: float = 0.0) -> list[int]:
        """Nanoseconds of each of so many calls."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"name": name, "calls": calls, "rest_s": rest_s}) + "\n")
        self._process.stdin.flush()
        samples: list[int] = json.loads(self._answer())
        return samples

    def kill(self) -> None:
        """SIGKILL, as a training process may end at any moment."""
        self._process.kill()
        self._process.wait()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r} ended with code {self._process.wait()}")
        return line


def take_turns(alternatives: Sequence[str], run: Callable[[str], list[float]], rounds: int) -> dict[str, list[list[float]]]:
    """Alternative -> its samples, one list per round; every other round goes through the alternatives backwards."""
    found: dict[str, list[list[float]]] = {name: [] for name in alternatives}
    for number in range(rounds):
        for name in alternatives if number % 2 == 0 else reversed(alternatives):
            found[name].append(run(name))
    return found

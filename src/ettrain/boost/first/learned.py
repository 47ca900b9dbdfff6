"""The file in which one attempt leaves the description of its first batch to the next: one for all ranks, and one for each rank that differs.

Replaced as a whole, so that a reader never sees half of it. Beside it, if asked for, the values of a real batch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from ettrain.boost.first.schema import Node, same_shapes
from ettrain.jobpaths import JobPaths
from ettrain.settings import ENV_JOB_DIR

VERSION: Final = 1


class Learned:
    """The descriptions of one loader's batches, for one rank."""

    def __init__(self, shared: Path | None, rank: int) -> None:
        self._shared = shared
        self._rank = rank

    @classmethod
    def of_job(cls, name: str, rank: int) -> Learned:
        """Those in the folder of the job that this process is part of; nothing where it is part of none."""
        folder = os.environ.get(ENV_JOB_DIR)
        return cls(None if folder is None else JobPaths(Path(folder)).learned(name), rank)

    @property
    def known(self) -> bool:
        """Whether there is a place for them."""
        return self._shared is not None

    def _own(self) -> Path:
        assert self._shared is not None
        return self._shared.with_name(f"{self._shared.stem}-rank-{self._rank:05d}.json")

    def read(self) -> Node | None:
        """The description for this rank; None where there is none, or none of this version."""
        if self._shared is None:
            return None
        for path in (self._own(), self._shared):
            found = _read(path)
            if found is not None:
                return found
        return None

    def write(self, node: Node) -> None:
        """Leave a description. Ranks other than the first write only what differs from the first one's.

        Raises:
            OSError: the folder cannot be written.
        """
        if self._shared is None:
            return
        if self._rank:
            shared = _read(self._shared)
            if shared is not None and same_shapes(shared, node):
                self._own().unlink(missing_ok=True)
                return
        path = self._own() if self._rank else self._shared
        _replace(path, lambda temporary: _write_json(temporary, {"version": VERSION, "batch": node}))

    def read_values(self) -> list[Tensor] | None:
        """The tensors of a real batch of this rank, where they were kept."""
        if self._shared is None:
            return None
        path = self._own().with_suffix(".pt")
        if not path.exists():
            return None
        values = torch.load(path, weights_only=True)
        return values if isinstance(values, list) else None

    def write_values(self, tensors: list[Tensor]) -> None:
        """Keep a real batch of this rank.

        Raises:
            OSError: the folder cannot be written.
        """
        if self._shared is not None:
            values = [tensor.detach().cpu().clone() for tensor in tensors]
            _replace(self._own().with_suffix(".pt"), lambda temporary: torch.save(values, temporary))


def _read(path: Path) -> Node | None:
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or found.get("version") != VERSION or not isinstance(found.get("batch"), dict):
        return None
    node: Node = found["batch"]
    return node


def _write_json(path: Path, content: Node) -> None:
    path.write_text(json.dumps(content, separators=(",", ":")), encoding="utf-8")


def _replace(path: Path, write: Callable[[Path], None]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)

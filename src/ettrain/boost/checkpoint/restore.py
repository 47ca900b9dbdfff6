"""Going on from the newest checkpoint that is whole: verified by all ranks together, with the reason for every one that is passed over.

A checkpoint that is damaged is passed over. One that is whole and another training's is an error: an older one would be, too.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from ettrain.boost.checkpoint.folder import CheckpointFolder
from ettrain.boost.checkpoint.manifest import Manifest
from ettrain.boost.checkpoint.ranks import Notes, Ranks
from ettrain.boost.checkpoint.reading import load, reader_of
from ettrain.boost.checkpoint.saver import EXTRA
from ettrain.boost.checkpoint.state import TrainState
from ettrain.errors import CheckpointInvalidError

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Restored:
    """What a training goes on from."""

    name: str = ""
    """'' = there was nothing to go on from."""
    manifest: Manifest | None = None
    extras: list[dict[str, Any]] = field(default_factory=list)
    """The ranks' own parts, in their order then."""
    passed_over: list[tuple[str, str]] = field(default_factory=list)
    """Newer ones: name and what is wrong."""
    seconds: float = 0.0

    @property
    def step(self) -> int:
        """Optimizer steps done."""
        return 0 if self.manifest is None else self.manifest.step


class Restore:
    """One restore of one rank; all ranks do it together.

    Args:
        folder: where the checkpoints are.
        ranks: who takes part.
        training: what is filled.
        timeout: seconds that a rank waits for another.
    """

    def __init__(self, folder: CheckpointFolder, ranks: Ranks, training: TrainState, *, timeout: float) -> None:
        self.folder, self.ranks, self.training, self.timeout = folder, ranks, training, timeout
        self._notes: Notes = ranks.main
        self._round = 0

    def newest(self) -> Restored:
        """Go on from the newest that verifies.

        Raises:
            CheckpointInvalidError: that one is another training's, or cannot be read without running code from it.
            CheckpointSaveError: the ranks lost each other.
        """
        restored = Restored()
        for name in self._exchange([found.name for found in self.folder.newest()] if self.ranks.rank == 0 else None)[0]:
            why = self._tried(name, restored)
            if not why:
                return restored
            restored.passed_over.append((name, why))
        return restored

    def named(self, name: str) -> Restored:
        """Go on from that one.

        Raises:
            CheckpointInvalidError: it is damaged, another training's, or not there.
            CheckpointSaveError: the ranks lost each other.
        """
        restored = Restored()
        why = self._tried(name, restored)
        if why:
            raise CheckpointInvalidError(self.folder.path(name), why)
        return restored

    def _tried(self, name: str, restored: Restored) -> str:
        """Verify it together and load it; why it is damaged, or ''."""
        with contextlib.ExitStack() as held:
            manifest, why = self._phase(lambda: self._verified(name, held))
            if why:
                return why
            extras, why = self._phase(lambda: self._loaded(name, manifest))
            if why:
                raise CheckpointInvalidError(self.folder.path(name), why)
        restored.name, restored.manifest, restored.extras = name, manifest, extras or []
        return ""

    def _phase(self, work: Callable[[], T]) -> tuple[T | None, str]:
        """Do something that every rank does, and hear what went wrong anywhere."""
        result, why = None, ""
        try:
            result = work()
        except CheckpointInvalidError as error:
            why = error.why
        except Exception as error:  # noqa: BLE001 - told to every rank, and raised by each
            why = f"{type(error).__name__}: {error}"
        return result, next((told for told in self._exchange(why) if told), "")

    def _verified(self, name: str, held: contextlib.ExitStack) -> Manifest:
        """Keep it from being removed, and read this rank's share of its files."""
        manifest = held.enter_context(self.folder.reading(name))
        verdict = self.folder.verify(name, only=sorted(manifest.files)[self.ranks.rank :: self.ranks.world])
        if not verdict.ok:
            raise CheckpointInvalidError(self.folder.path(name), verdict.why)
        return manifest

    def _loaded(self, name: str, manifest: Manifest | None) -> list[dict[str, Any]]:
        assert manifest is not None
        reader = reader_of(self.folder.path(name))
        extras = [self._extra(name, rank) for rank in range(manifest.world)]
        self.training.load(reader.metadata(), lambda flat: load(flat, reader, no_dist=True))
        return extras

    def _exchange(self, value: Any) -> list[Any]:
        """What each rank says, in their order."""
        self._round += 1
        self._notes.put(f"restore/{self._round}/{self.ranks.rank}", value)
        told = self._notes.take_all(self.ranks.keys(f"restore/{self._round}"), self.timeout)
        self._notes.forget([f"restore/{self._round - 2}/{self.ranks.rank}"])
        return told

    def _extra(self, name: str, rank: int) -> dict[str, Any]:
        """A rank's own part.

        Raises:
            CheckpointInvalidError: it could only be read by running code.
        """
        data = self.folder.read(name, EXTRA.format(rank))
        try:
            found: dict[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        except Exception as error:  # noqa: BLE001 - whatever torch raises on content that it refuses or cannot read
            raise CheckpointInvalidError(self.folder.path(name), f"{EXTRA.format(rank)} is refused: {type(error).__name__}") from None
        return found


def described(restored: Restored, address: str) -> list[str]:
    """What a restore has to say, line by line."""
    lines = [f"passed over {name}: {why}" for name, why in restored.passed_over]
    if restored.manifest is None:
        return [*lines, f"no checkpoint to go on from in {address}: training from the start"]
    return [*lines, f"goes on at step {restored.step} from {address}/{restored.name}{_told(restored.manifest.position)}"]


def _told(position: Mapping[str, Any]) -> str:
    parts: Sequence[str] = [f"{name} {value:,}" if isinstance(value, int) else f"{name} {value}" for name, value in position.items()]
    return f" ({', '.join(parts)})" if parts else ""

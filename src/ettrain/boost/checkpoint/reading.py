"""Reads DCP checkpoints so that one from another party cannot run code: `.metadata` by a list of types, objects with `weights_only`.

`SafeReader` and `SafePlanner` are for `dcp.load`; `load` is the three together, with clear errors on every rank. Not here: which
checkpoint is read (see `folder`), and what for.
"""

from __future__ import annotations

import os
import pickle
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata

from ettrain.boost.checkpoint import metadata as dcpmetadata
from ettrain.errors import CheckpointInvalidError, MissingExtraError

_ASKED: Final = re.compile(r"GLOBAL (\S+)")
_OF_ONE_RANK: Final = re.compile(r"__\d+\.metadata")


class SafeReading:
    """What makes a reader of DCP's safe; put before it among the bases.

    Damage is told when the reading is set up, not when the metadata is read: `dcp.load` would swallow it there, and look for the
    metadata of single ranks, which read as zeros elsewhere.
    """

    path: Any
    fs: Any
    _read: tuple[str, Any] | None = None
    _problem: CheckpointInvalidError | None = None

    @property
    def where(self) -> str:
        """The checkpoint, for messages."""
        return str(self.path)

    def metadata(self) -> Any:
        """The checkpoint's metadata, read once and found whole.

        Raises:
            CheckpointInvalidError: it cannot be trusted, or the checkpoint is not whole.
        """
        if self._read is None or self._read[0] != self.where:
            found = dcpmetadata.read(self._content(), self.where)
            dcpmetadata.check_whole(found, self.where, self._size_of)
            self._read = (self.where, found)
        return self._read[1]

    def read_metadata(self, *args: Any) -> Any:
        """For `dcp.load`: an empty one where there is a problem; `set_up_storage_reader` raises it."""
        try:
            found, self._problem = self.metadata(), None
        except CheckpointInvalidError as problem:
            found, self._problem = Metadata(state_dict_metadata={}, storage_data={}), problem
        return found

    def set_up_storage_reader(self, metadata: Any, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:  # noqa: FBT001 - torch's signature
        """For `dcp.load`.

        Raises:
            CheckpointInvalidError: what `read_metadata` found.
        """
        if self._problem is not None:
            raise self._problem
        super().set_up_storage_reader(metadata, is_coordinator, *args, **kwargs)  # type: ignore[misc]

    def _content(self) -> bytes:
        try:
            with self.fs.create_stream(self.fs.concat_path(self.path, dcpmetadata.NAME), "rb") as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            raise CheckpointInvalidError(self.where, self._why_none()) from None
        except OSError as error:
            raise CheckpointInvalidError(self.where, f"{dcpmetadata.NAME} cannot be read: {error.strerror or error}") from None

    def _why_none(self) -> str:
        try:
            names = [os.path.basename(str(name).rstrip("/")) for name in self.fs.ls(self.path)]
        except (OSError, NotImplementedError):
            return "there is no such checkpoint"
        if any(_OF_ONE_RANK.fullmatch(name) for name in names):
            return "it was saved with use_collectives=False: each rank knows its own part only, and elsewhere it reads as zeros. Save it with collectives"
        return f"no {dcpmetadata.NAME}: it was never finished" if names else "there is no checkpoint: the folder is empty"

    def _size_of(self, name: str) -> int | None:
        try:
            with self.fs.create_stream(self.fs.concat_path(self.path, name), "rb") as stream:
                return int(stream.seek(0, os.SEEK_END))
        except OSError:
            return None


class SafeReader(SafeReading, dcp.FileSystemReader):  # type: ignore[misc]
    """`dcp.FileSystemReader` that runs no code of the checkpoint's and reads only what is whole."""


class SafePlanner(dcp.DefaultLoadPlanner):  # type: ignore[misc]
    """`dcp.DefaultLoadPlanner` that reads objects with `weights_only`."""

    def load_bytes(self, read_item: Any, value: Any) -> None:
        """Read one object that is no tensor.

        Raises:
            CheckpointInvalidError: it could only be read by running code.
        """
        fqn = read_item.dest_index.fqn
        try:
            found = torch.load(value, map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError) as error:
            raise CheckpointInvalidError(fqn, _why_not(error)) from None
        if self.flatten_state_dict:
            _set(self.original_state_dict, self.mappings[fqn], found)
        else:
            self.state_dict[fqn] = found


def _set(state: Any, way: tuple[Any, ...], value: Any) -> None:
    """Put a value where the flattened key stood: the way exists, since it is the caller's own state."""
    for key in way[:-1]:
        state = state[key]
    state[way[-1]] = value


def _why_not(error: Exception) -> str:
    asked = _ASKED.search(str(error))
    if asked is None:
        return f"cannot be read without running code of the checkpoint's, or is damaged ({str(error)[:80]})"
    return f"asks for {asked[1]}: refused, nothing was run. If you trust the checkpoint and the type, allow it with torch.serialization.add_safe_globals"


def reader_of(address: str | os.PathLike[str]) -> Any:
    """A `SafeReader` for a folder, or one through fsspec for another address.

    Raises:
        MissingExtraError: fsspec is needed and not installed.
    """
    text = os.fspath(address).removeprefix("file://")
    if "://" not in text:
        return SafeReader(text)
    try:
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader
    except ImportError:
        raise MissingExtraError("cache", f"reading a checkpoint at {text}") from None
    return type("SafeFsspecReader", (SafeReading, FsspecReader), {})(text)


def load(state: dict[str, Any], reader: Any, *, process_group: Any = None, no_dist: bool = False) -> None:
    """`dcp.load` into `state`, with `SafePlanner`. On several ranks all raise, or none.

    Args:
        state: tensors are filled in place, one piece of the checkpoint at a time; other values are replaced.
        reader: `reader_of(...)`, or a `SafeReader`.
        process_group: the ranks that load together; None = all.
        no_dist: read alone, without other ranks.

    Raises:
        CheckpointInvalidError: it could not be read; says what, and on which rank.
    """
    with _quiet():
        try:
            dcp.load(state, storage_reader=reader, planner=SafePlanner(), process_group=process_group, no_dist=no_dist)
        except CheckpointException as failed:
            raise _told(failed, str(reader.path)) from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's warning that a process alone loads alone."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        yield


def _told(failed: Any, where: str) -> CheckpointInvalidError:
    """The first rank's failure that says most."""
    problems = {rank: wrapped[0] if isinstance(wrapped, tuple) else wrapped for rank, wrapped in sorted(failed.failures.items())}
    ours = next((problem for problem in problems.values() if isinstance(problem, CheckpointInvalidError)), None)
    if ours is not None:
        return ours if ours.where == where else CheckpointInvalidError(where, f"{ours.where} {ours.why}")
    rank, problem = next(iter(problems.items()))
    return CheckpointInvalidError(where, f"rank {rank} could not read it: {type(problem).__name__}: {str(problem)[:200]}")

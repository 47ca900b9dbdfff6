"""The `.metadata` of a DCP checkpoint, read without running code of the checkpoint's, and judged before anything is loaded by it.

The file is a pickle. It is read by an unpickler that knows the few types DCP writes, and nothing else. Not here: the tensors (see `reading`).
"""

from __future__ import annotations

import collections
import io
import pickle
from collections.abc import Callable
from importlib import import_module
from math import prod
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, Final

from ettrain.errors import CheckpointInvalidError

NAME: Final = ".metadata"
_HOME: Final = "torch.distributed.checkpoint.metadata"
_STORAGE: Final = "torch.distributed.checkpoint.filesystem"
PRIVATE: Final[dict[str, tuple[str, ...]]] = {
    _HOME: ("_MEM_FORMAT_ENCODING",),
    _STORAGE: ("_StorageInfo",),
    "torch.distributed.checkpoint._fsspec_filesystem": ("FsspecReader",),
}
"""Private names of torch that stand in a `.metadata`, and the reader for addresses; a contract test looks them up in the torch at hand."""
_TYPES: Final[dict[str, tuple[str, ...]]] = {
    _HOME: (
        "Metadata", "MetadataIndex", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "TensorProperties", "StorageMeta",
        "_MEM_FORMAT_ENCODING",
    ),
    _STORAGE: ("_StorageInfo",),
    "torch": ("Size",),
}  # fmt: skip


class _Layouts:
    """In place of torch's function of the same task: nothing can be set on it."""

    __slots__ = ()

    def __call__(self, name: str) -> Any:
        torch = import_module("torch")
        layout = getattr(torch, name.removeprefix("torch."), None)
        if not isinstance(layout, torch.layout):
            raise _Refused(f"the layout {name[:40]!r}")
        return layout


_STAND_INS: Final[dict[tuple[str, str], Any]] = {
    ("torch.serialization", "_get_layout"): _Layouts(),
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    **{(module, name): PurePosixPath for module in ("pathlib", "pathlib._local") for name in ("PosixPath", "PurePosixPath")},
    **{(module, name): PureWindowsPath for module in ("pathlib", "pathlib._local") for name in ("WindowsPath", "PureWindowsPath")},
}
"""Types that touch nothing outside themselves, for what else a `.metadata` may hold."""


class _Refused(Exception):  # noqa: N818 - never leaves this module
    """A name that has no place in a `.metadata`."""


class _MetadataUnpickler(pickle.Unpickler):
    """Finds the types of DCP's metadata, and refuses any other name before it is looked up."""

    def find_class(self, module: str, name: str) -> Any:
        found = _STAND_INS.get((module, name))
        if found is not None:
            return found
        if name in _TYPES.get(module, ()):
            return getattr(import_module(module), name)
        if module == "torch" and name.isidentifier():
            torch = import_module("torch")
            value = getattr(torch, name, None)
            if isinstance(value, torch.dtype):
                return value
        raise _Refused(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise _Refused(f"a persistent object {str(pid)[:40]!r}")


def read(data: bytes, where: str) -> Any:
    """The `Metadata` in a file's content.

    Args:
        data: the content.
        where: the checkpoint, for messages.

    Raises:
        CheckpointInvalidError: it is damaged, names a type that DCP does not write (which may be an attack; nothing of it was run), or
            has been made to look like what it is not.
    """
    before = _attributes()
    try:
        found = _MetadataUnpickler(io.BytesIO(data)).load()
    except _Refused as refused:
        raise CheckpointInvalidError(
            where,
            f"{NAME} asks for {refused}, which has no place there: refused, nothing was run. Only load it by other means if you trust its author",
        ) from None
    except Exception as error:  # noqa: BLE001 - a damaged pickle may raise anything
        raise CheckpointInvalidError(where, f"{NAME} cannot be read, it is damaged ({type(error).__name__}: {str(error)[:80]})") from None
    finally:
        changed = _restored(before)
    if changed:
        raise CheckpointInvalidError(
            where, f"{NAME} tries to change {changed}: refused. Only load it by other means if you trust its author"
        )
    _typed(found, where)
    return found


def _attributes() -> dict[Any, dict[str, Any]]:
    """Attributes of the types a pickle can get hold of: a pickle may set those of a type, which would outlast the reading."""
    kinds = [getattr(import_module(module), name, None) for module, names in _TYPES.items() for name in names]
    return {kind: dict(vars(kind)) for kind in (*kinds, PurePosixPath, PureWindowsPath) if isinstance(kind, type)}


def _restored(before: dict[Any, dict[str, Any]]) -> str:
    """Put back what was set meanwhile; returns its name, '' where nothing was."""
    found = ""
    for kind, attributes in before.items():
        now = dict(vars(kind))
        for name in {*now, *attributes}:
            if now.get(name) is attributes.get(name):
                continue
            found = f"{getattr(kind, '__name__', kind)}.{name}"
            if name in attributes:
                setattr(kind, name, attributes[name])
            else:
                delattr(kind, name)
    return found


def _typed(found: Any, where: str) -> None:
    home, storage = import_module(_HOME), import_module(_STORAGE)
    kinds = (home.TensorStorageMetadata, home.BytesStorageMetadata)
    sound = isinstance(found, home.Metadata) and isinstance(found.state_dict_metadata, dict) and isinstance(found.storage_data, dict)
    sound = sound and all(isinstance(name, str) and isinstance(told, kinds) for name, told in found.state_dict_metadata.items())
    sound = sound and all(
        isinstance(index, home.MetadataIndex) and isinstance(info, storage._StorageInfo) and isinstance(info.relative_path, str)
        for index, info in found.storage_data.items()
    )
    if not sound:
        raise CheckpointInvalidError(
            where, f"{NAME} is not the metadata of a checkpoint in files: write it with dcp.save or ett.Checkpointer"
        )


def check_whole(metadata: Any, where: str, size_of: Callable[[str], int | None]) -> None:
    """Check that everything the metadata names is there.

    Args:
        metadata: what `read` returned.
        where: the checkpoint, for messages.
        size_of: bytes of the file of that name in the checkpoint's folder; None = there is none.

    Raises:
        CheckpointInvalidError: a file is missing or short, or a piece of a tensor is nowhere (a lost write, or a checkpoint of one rank alone).
    """
    try:
        _check(metadata, where, size_of)
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CheckpointInvalidError(where, f"{NAME} makes no sense ({type(error).__name__}: {str(error)[:80]})") from None


def _check(metadata: Any, where: str, size_of: Callable[[str], int | None]) -> None:
    ends: dict[str, int] = {}
    places: set[tuple[str, tuple[int, ...] | None]] = set()
    for index, info in metadata.storage_data.items():
        _inside(info.relative_path, where)
        if min(info.offset, info.length) < 0:
            raise CheckpointInvalidError(where, f"{NAME} gives {index.fqn} a negative place in {info.relative_path}")
        ends[info.relative_path] = max(ends.get(info.relative_path, 0), info.offset + info.length)
        places.add((index.fqn, None if index.offset is None else tuple(index.offset)))
    for name, end in sorted(ends.items()):
        size = size_of(name)
        if size is None or size < end:
            raise CheckpointInvalidError(where, f"{name} is missing" if size is None else f"{name} is short: {size} of {end} bytes")
    for fqn, told in metadata.state_dict_metadata.items():
        _all_there(fqn, told, where, places)


def _inside(name: str, where: str) -> None:
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\0" in name or "://" in name:
        raise CheckpointInvalidError(where, f"{NAME} names a file outside of the checkpoint ({name!r}): refused")


def _all_there(fqn: str, told: Any, where: str, places: set[tuple[str, tuple[int, ...] | None]]) -> None:
    chunks = getattr(told, "chunks", None)
    if chunks is None:
        if (fqn, None) not in places:
            raise CheckpointInvalidError(where, f"nothing was written for {fqn}")
        return
    begins = {tuple(chunk.offsets) for chunk in chunks}
    lost = next((begin for begin in sorted(begins) if (fqn, begin) not in places), None)
    if lost is not None:
        raise CheckpointInvalidError(where, f"nothing was written for the part of {fqn} at {list(lost)}")
    held = sum(prod(chunk.sizes) for chunk in chunks)
    if held != prod(told.size) or len(begins) != len(chunks):
        raise CheckpointInvalidError(
            where,
            f"it holds {held:,} of the {prod(told.size):,} elements of {fqn}: ranks' parts are missing, as after a save with use_collectives=False",
        )

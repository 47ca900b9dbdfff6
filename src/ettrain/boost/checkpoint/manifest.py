"""The manifest of a checkpoint: which files belong to it, their sizes and checksums, and what it is a checkpoint of.

It is written last, so its presence says that a checkpoint is whole; its own checksum says that it is as it was written. Standard
library only. Not here: files (see `folder`).
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ettrain.errors import CheckpointInvalidError

SCHEMA: Final = 1
NAME: Final = "manifest.json"
_CRC32_DIGITS: Final = 8
_MAPPINGS: Final = ("versions", "position", "metrics", "seconds")
_KNOWN: Final = {"schema", "step", "created_ns", "world", "files", "job", "attempt", "name", "generation", "checksum", *_MAPPINGS}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file of a checkpoint."""

    bytes: int
    crc32: str
    """zlib.crc32 of the whole file, eight hexadecimal digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a checkpoint consists of and stands for."""

    step: int
    """Optimizer steps done when it was taken."""
    created_ns: int
    """Wall clock, ns since the epoch, when it was taken."""
    world: int
    """Ranks that wrote it."""
    files: Mapping[str, FileEntry]
    job: str = ""
    attempt: int = 0
    name: str = ""
    """Folder it was committed in, e.g. step-00000120; `CheckpointFolder.commit` fills it in."""
    generation: int = 0
    """How often the training had gone back to an older checkpoint than the newest; `CheckpointFolder.commit` fills it in."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of torch, ettrain and Python."""
    position: Mapping[str, Any] = field(default_factory=dict)
    """Small summary of how much data was consumed, for people; the exact position is in the ranks' own files."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Numbers of the program's own, e.g. the loss; one that is not finite is stored as null and reads as nan."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """What the save took: blocking, staging, write."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Fields that this version does not know: kept."""

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(entry.bytes for entry in self.files.values())

    def to_bytes(self) -> bytes:
        """The file's content: JSON with a checksum of the rest of it.

        Raises:
            CheckpointInvalidError: a field holds what JSON cannot, or a file's name is none.
        """
        told: dict[str, Any] = {name: _finite(value) for name, value in self.more.items() if name not in _KNOWN}
        told |= {
            "schema": SCHEMA, "step": self.step, "created_ns": self.created_ns, "world": self.world, "job": self.job, "attempt": self.attempt,
            "name": self.name, "generation": self.generation, "files": {name: {"bytes": entry.bytes, "crc32": entry.crc32} for name, entry in self.files.items()},
        }  # fmt: skip
        told |= {name: _finite(dict(getattr(self, name))) for name in _MAPPINGS}
        try:
            told["checksum"] = _checksum(told)
            data = (json.dumps(told, indent=1, sort_keys=True) + "\n").encode()
        except (TypeError, ValueError) as error:
            raise CheckpointInvalidError(self.name or NAME, f"a field of the manifest is no JSON: {error}") from None
        _from(json.loads(data), self.name or NAME)  # what would be refused when read is refused now
        return data

    @classmethod
    def from_bytes(cls, data: bytes, where: str = NAME) -> Manifest:
        """The manifest in a file's content.

        Args:
            data: the content.
            where: what to call it in a message.

        Raises:
            CheckpointInvalidError: it is cut off, altered, or of a newer version; says which.
        """
        try:
            told = json.loads(data)
        except (ValueError, RecursionError):
            raise CheckpointInvalidError(where, "the manifest is no JSON: it was cut off or damaged") from None
        if not isinstance(told, dict) or type(told.get("schema")) is not int:
            raise CheckpointInvalidError(where, f"{NAME} is not a manifest of ettrain's")
        if told["schema"] > SCHEMA:
            raise CheckpointInvalidError(
                where, f"written by a newer ettrain (schema {told['schema']}, this one reads {SCHEMA}): update ettrain"
            )
        said = told.pop("checksum", None)
        if said != _checksum(told, default=""):
            raise CheckpointInvalidError(where, "the manifest's own checksum does not fit: it was altered or damaged")
        return _from(told, where)


def is_file_name(name: str) -> bool:
    """Whether `name` is that of a file in the checkpoint's own folder, and no path out of it."""
    return (
        bool(name) and name not in (".", "..") and "/" not in name and "\\" not in name and "\0" not in name and not name.startswith(NAME)
    )


def _from(told: Mapping[str, Any], where: str) -> Manifest:
    def number(name: str, *, default: int | None = None) -> int:
        value = told.get(name, default)
        if type(value) is not int or value < 0:
            raise CheckpointInvalidError(where, f"the manifest's {name} is not a whole number: {value!r}")
        return value

    def text(name: str) -> str:
        value = told.get(name, "")
        if not isinstance(value, str):
            raise CheckpointInvalidError(where, f"the manifest's {name} is not a text: {value!r}")
        return value

    mappings: dict[str, dict[str, Any]] = {}
    for name in _MAPPINGS:
        value = told.get(name, {})
        if not isinstance(value, dict):
            raise CheckpointInvalidError(where, f"the manifest's {name} is not an object: {value!r}")
        mappings[name] = value
    return Manifest(
        step=number("step"),
        created_ns=number("created_ns"),
        world=number("world"),
        files=_files(told.get("files"), where),
        job=text("job"),
        attempt=number("attempt", default=0),
        name=text("name"),
        generation=number("generation", default=0),
        versions={name: str(value) for name, value in mappings["versions"].items()},
        position=mappings["position"],
        metrics=_numbers(mappings["metrics"], where),
        seconds=_numbers(mappings["seconds"], where),
        more={name: value for name, value in told.items() if name not in _KNOWN},
    )


def _files(told: Any, where: str) -> dict[str, FileEntry]:
    if not isinstance(told, dict):
        raise CheckpointInvalidError(where, "the manifest lists no files")
    files = {}
    for name, entry in told.items():
        size, crc32 = (entry.get("bytes"), entry.get("crc32")) if isinstance(entry, dict) else (None, None)
        if not (isinstance(size, int) and size >= 0 and isinstance(crc32, str) and _is_crc32(crc32) and is_file_name(name)):
            raise CheckpointInvalidError(where, f"the manifest's entry of file {name!r} is malformed: {entry!r}")
        files[name] = FileEntry(bytes=size, crc32=crc32)
    return files


def _is_crc32(text: str) -> bool:
    return len(text) == _CRC32_DIGITS and all(digit in "0123456789abcdef" for digit in text)


def _numbers(told: Mapping[str, Any], where: str) -> dict[str, float]:
    numbers = {}
    for name, value in told.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise CheckpointInvalidError(where, f"the manifest's {name} is not a number: {value!r}")
        numbers[name] = math.nan if value is None else float(value)
    return numbers


def _finite(value: Any) -> Any:
    """`value` with null in place of numbers that JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def _checksum(told: Mapping[str, Any], *, default: str | None = None) -> str:
    """Checksum of the rest of the manifest; `default` where it holds a number that JSON does not have."""
    try:
        canonical = json.dumps(told, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except ValueError:
        if default is None:
            raise
        return default
    return crc32_text(zlib.crc32(canonical.encode()))


def crc32_text(crc32: int) -> str:
    """A checksum as a manifest spells it."""
    return f"{crc32:0{_CRC32_DIGITS}x}"

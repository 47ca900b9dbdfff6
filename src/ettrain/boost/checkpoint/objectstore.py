"""Checkpoints on an fsspec address: an object appears whole or not at all, there are no locks, and a folder is a common beginning of names.

Keeping others away is best effort here: who reads leaves a note, which counts for `storage.LEASE_S`. Not here: file systems of this
host (see `storage`).
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator
from typing import Any, Final

from ettrain.boost.checkpoint.storage import CHUNK_BYTES, LEASE_S, Held, note_of, whoami
from ettrain.errors import UsageError

LEASE: Final = "manifest.json.reader-"
"""Beginning of the names of readers' notes."""


class ObjectStorage:
    """An fsspec address such as `s3://bucket/folder`.

    Raises:
        UsageError: the address is none, or its file system's package is not installed.
    """

    local = False

    def __init__(self, address: str) -> None:
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            raise UsageError(f"{address}: needs fsspec (torch brings it along): pip install 'ettrain[cache]'") from None
        try:
            self.fs, root = url_to_fs(address)
        except (ImportError, ValueError) as error:
            raise UsageError(f"{address}: no address of checkpoints: {error}") from None
        self.root = str(root).rstrip("/")
        self.address = address.rstrip("/")

    def path(self, name: str) -> str:  # noqa: D102 - see Storage
        return f"{self.address}/{name}"

    def taken(self) -> list[str]:  # noqa: D102
        return [_base(one["name"]) for one in self._ls(self.root)]

    def names(self) -> list[str]:  # noqa: D102
        return [_base(one["name"]) for one in self._ls(self.root) if one["type"] == "directory"]

    def make(self, name: str, mark: str, data: bytes) -> bool:  # noqa: D102
        if self._ls(f"{self.root}/{name}"):
            return False
        path = f"{self.root}/{name}/{mark}"
        with contextlib.suppress(NotImplementedError):
            self.fs.makedirs(f"{self.root}/{name}", exist_ok=True)
        try:
            self.fs.pipe_file(path, data, mode="create")
        except FileExistsError:
            return False
        except (TypeError, NotImplementedError):  # a file system that cannot create exclusively
            self.fs.pipe_file(path, data)
        return True

    def files(self, name: str) -> dict[str, int]:  # noqa: D102
        found = self._ls(f"{self.root}/{name}")
        if not found:
            raise FileNotFoundError(self.path(name))
        return {_base(one["name"]): -1 if one["type"] == "directory" else int(one["size"] or 0) for one in found}

    def read(self, name: str, file: str) -> bytes:  # noqa: D102
        data: bytes = self.fs.cat_file(f"{self.root}/{name}/{file}")
        return data

    def chunks(self, name: str, file: str) -> Iterator[bytes | memoryview]:  # noqa: D102
        with self.fs.open(f"{self.root}/{name}/{file}", "rb", block_size=CHUNK_BYTES) as opened:
            while piece := opened.read(CHUNK_BYTES):
                yield piece

    def settle(self, name: str) -> None:
        """Objects are durable once they are there."""

    def put(self, name: str, file: str, data: bytes, *, over: str) -> None:  # noqa: D102
        self.fs.pipe_file(f"{self.root}/{name}/{file}", data)
        self.remove(name, over)

    def rename(self, name: str, file: str, new: str) -> None:  # noqa: D102
        self.fs.pipe_file(f"{self.root}/{name}/{new}", self.read(name, file))
        self.remove(name, file)

    def remove(self, name: str, file: str) -> None:  # noqa: D102
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm_file(f"{self.root}/{name}/{file}")

    def remove_folder(self, name: str) -> None:  # noqa: D102
        with contextlib.suppress(OSError, NotImplementedError):  # where folders are but names, it went with its last object
            self.fs.rmdir(f"{self.root}/{name}")

    def removable(self, name: str) -> bool:  # noqa: D102
        return True

    def hold(self, name: str, file: str, *, alone: bool) -> Held | None:  # noqa: D102
        there = self.files(name)
        if file not in there:
            raise FileNotFoundError(f"{self.path(name)}/{file}")
        now = whoami()
        for other in there if alone else ():
            if not other.startswith(LEASE):
                continue
            with contextlib.suppress(FileNotFoundError):
                told = note_of(self.read(name, other))
                if now["since_ns"] - int(told.get("since_ns") or 0) < LEASE_S * 1_000_000_000:
                    return None
                self.remove(name, other)
        note = _Note(self, name, f"{LEASE}{secrets.token_hex(8)}")
        if not alone:
            with contextlib.suppress(OSError):  # who may only read, reads without a note
                self.fs.pipe_file(f"{self.root}/{name}/{note.file}", json.dumps(now).encode())
        return note

    def _ls(self, path: str) -> list[dict[str, Any]]:
        self.fs.invalidate_cache()
        try:
            found: list[dict[str, Any]] = self.fs.ls(path, detail=True)
        except FileNotFoundError:
            return []
        except NotADirectoryError:
            raise UsageError(f"{self.address}: is not a folder") from None
        return [one for one in found if str(one["name"]).strip("/") != path.strip("/")]


class _Note:
    """A reader's note."""

    def __init__(self, storage: ObjectStorage, name: str, file: str) -> None:
        self.storage, self.name, self.file = storage, name, file
        self.pid = os.getpid()

    def release(self) -> None:
        """Take it back; a forked child does not, since it is its parent's."""
        if self.pid == os.getpid():
            self.pid = -1
            with contextlib.suppress(OSError):
                self.storage.remove(self.name, self.file)


def _base(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]

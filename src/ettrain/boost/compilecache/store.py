"""Where archives lie: any fsspec address, read and published without a lock.

    ADDRESS/<program>/<digest of the key>/<digest of the entries>.ettc

An archive is never changed. A publisher writes a new one that holds all it has read and what is new, then removes those it has read:
two publishers at once leave two archives, readers take all there are, and the next publisher makes one of them. Nothing is lost.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ettrain import clock
from ettrain.boost.compilecache.archive import (
    EPOCH_DAY_S,
    MIN_SECRET_BYTES,
    Archive,
    ArchiveRefusedError,
    Entry,
    bounded,
    merged,
    pack,
    unpack,
)
from ettrain.boost.compilecache.key import differences, digest
from ettrain.errors import UsageError

SUFFIX: Final = ".ettc"
ENV_SECRET: Final = "ETT_CACHE_KEY"  # noqa: S105 - the name, not the key
MAX_BYTES: Final = 2 << 30
MAX_AGE_DAYS: Final = 30
_READ_AGAIN: Final = 100
_OTHERS_MAY_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A file of the store that bears an archive's name."""

    path: str
    program: str
    digest: str
    """Digest of the key under which it lies."""
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a store holds under one key."""

    entries: tuple[Entry, ...] = ()
    paths: tuple[str, ...] = ()
    """The archives they come from."""
    size: int = 0
    """Bytes read."""
    refused: tuple[str, ...] = ()
    """Archives that were not used, each with the reason."""


def secret_from(text: str | None) -> bytes | None:
    """The user's key from the setting `ETT_CACHE_KEY`: the key itself, or `@FILE` for a file that holds it.

    Raises:
        UsageError: the file cannot be read, or the key is shorter than 16 bytes.
    """
    if not text:
        return None
    if text.startswith("@"):
        try:
            with open(text[1:], "rb") as file:
                secret = file.read().strip()
        except OSError as error:
            raise UsageError(f"{ENV_SECRET}={text}: cannot be read: {error.strerror}.") from None
    else:
        secret = text.encode()
    if len(secret) < MIN_SECRET_BYTES:
        raise UsageError(
            f"{ENV_SECRET}: {len(secret)} bytes are too short for a key. Use at least {MIN_SECRET_BYTES}, e.g. openssl rand -hex 32."
        )
    return secret


class Store:
    """The archives at one address.

    Args:
        address: a folder, or an fsspec address such as `s3://bucket/folder`.
        secret: the key that archives are signed with; None = not signed, which only a folder of this host's file systems may be.

    Raises:
        UsageError: the address is none, its file system's package is not installed, or it needs a key.
    """

    def __init__(self, address: str, secret: bytes | None = None) -> None:
        try:
            from fsspec.core import url_to_fs
            from fsspec.implementations.local import LocalFileSystem
        except ImportError:
            raise UsageError("the compile cache needs fsspec (torch brings it along): pip install 'ettrain[cache]'") from None
        try:
            self._fs, self._root = url_to_fs(address)
        except (ImportError, ValueError) as error:
            raise UsageError(f"{address}: no address of a compile cache: {error}") from None
        self.address = address
        self.secret = secret
        self.local = isinstance(self._fs, LocalFileSystem)
        if secret is None and not self.local:
            raise UsageError(
                f"{address}: archives hold code, and others may be able to write there. Set {ENV_SECRET} to a key of your own to have them signed."
            )

    def stored(self, program: str = "*", key_digest: str = "*") -> list[Stored]:
        """The files there are, oldest path first."""
        found = []
        for path, told in self._glob(f"{self._root}/{program}/{key_digest}/*{SUFFIX}").items():
            parts = path.rstrip("/").split("/")
            found.append(Stored(path=path, program=parts[-3], digest=parts[-2], size=int(told.get("size") or 0)))
        return sorted(found, key=lambda stored: stored.path)

    def read(self, path: str) -> Archive:
        """One archive.

        Raises:
            ArchiveRefusedError: it is not authentic, malformed, or another user's while nothing is signed.
            FileNotFoundError: a publisher has removed it meanwhile.
        """
        try:
            if not self.local:
                return unpack(self._fs.cat_file(path), secret=self.secret)
            with open(path, "rb") as file:
                if self.secret is None:
                    _must_be_ours(os.fstat(file.fileno()))
                return unpack(file.read(), secret=self.secret)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise ArchiveRefusedError(f"cannot be read: {error}") from None

    def find(self, key: Mapping[str, Any]) -> Found:
        """All that is stored under `key`.

        Raises:
            FileNotFoundError: publishers replaced archives faster than they could be read, time and again.
        """
        for _ in range(_READ_AGAIN):
            with contextlib.suppress(FileNotFoundError):  # a publisher removed it between listing and reading: what replaces it is there
                return self._find(key)
        return self._find(key)

    def _find(self, key: Mapping[str, Any]) -> Found:
        entries: tuple[Entry, ...] = ()
        paths, refused, size = [], [], 0
        for stored in self.stored(str(key["program"]), digest(key)):
            try:
                archive = self.read(stored.path)
            except ArchiveRefusedError as error:
                refused.append(f"{_base(stored.path)}: {error}")
                continue
            if archive.key != dict(key):
                refused.append(f"{_base(stored.path)}: lies under a key that is not its own: {'; '.join(differences(key, archive.key))}")
                continue
            entries = merged(entries, archive.entries)
            paths.append(stored.path)
            size += stored.size
        return Found(entries=entries, paths=tuple(paths), size=size, refused=tuple(refused))

    def why_nothing(self, key: Mapping[str, Any]) -> str:
        """In words, why nothing is stored under `key`: what sets it apart from the archive nearest to it."""
        nearest: list[str] | None = None
        for stored in self.stored(str(key["program"])):
            try:
                apart = differences(key, self.read(stored.path).key)
            except (ArchiveRefusedError, FileNotFoundError):
                continue
            if nearest is None or len(apart) < len(nearest):
                nearest = apart
        return f"no archive for this machine and program; the nearest differs in {'; '.join(nearest)}" if nearest else "no archive yet"

    def publish(
        self,
        key: Mapping[str, Any],
        new: Iterable[Entry],
        *,
        max_bytes: int = MAX_BYTES,
        max_age_days: int = MAX_AGE_DAYS,
        without: Container[tuple[str, str]] = (),
    ) -> str:
        """Write one archive that holds what is stored under `key` and what is new, then remove those it was made of.

        Args:
            key: the environment's key.
            new: entries that may be new.
            max_bytes: bound of the entries' sizes; those used least recently go.
            max_age_days: entries that were not used for so long go.
            without: (kind, name) of stored entries that a new one takes the place of.

        Returns:
            The archive's path.

        Raises:
            OSError: it cannot be written; nothing was removed.
        """
        found = self.find(key)
        oldest = today() - max_age_days
        stored = (entry for entry in found.entries if (entry.kind, entry.name) not in without)
        entries = bounded(merged(stored, new), max_bytes=max_bytes, oldest_day=oldest)
        identities = "".join("".join(entry.identity) + str(entry.used) for entry in sorted(entries, key=lambda entry: entry.identity))
        name = hashlib.sha256(identities.encode()).hexdigest()[:16] + SUFFIX
        path = f"{self._root}/{key['program']}/{digest(key)}/{name}"
        self._write(path, pack(key, entries, made=today() * EPOCH_DAY_S, secret=self.secret))
        for old in found.paths:
            if old != path:
                self.remove(old)
        return path

    def remove(self, path: str) -> None:
        """Remove one archive; that somebody else has done so is as good."""
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(path)

    def _write(self, path: str, data: bytes) -> None:
        """All of it or nothing: a rename here, one request where objects are stored."""
        self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        if not self.local:
            self._fs.pipe_file(path, data)
            return
        temporary = f"{path}.{os.getpid()}.tmp"
        try:
            with open(temporary, "xb", opener=_private) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise

    def _glob(self, pattern: str) -> dict[str, dict[str, Any]]:
        self._fs.invalidate_cache()
        with contextlib.suppress(FileNotFoundError):
            found: dict[str, dict[str, Any]] = self._fs.glob(pattern, detail=True)
            return found
        return {}


def today() -> int:
    """Days since the epoch."""
    return clock.wall_pair()[0] // (EPOCH_DAY_S * 1_000_000_000)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o644)


def _base(path: str) -> str:
    return path.rpartition("/")[2]


def _must_be_ours(told: os.stat_result) -> None:
    if told.st_uid not in (os.getuid(), 0):
        raise ArchiveRefusedError(f"belongs to another user ({told.st_uid}), and archives hold code: sign them with {ENV_SECRET}")
    if told.st_mode & _OTHERS_MAY_WRITE:
        raise ArchiveRefusedError(f"others may write it, and archives hold code: chmod go-w, or sign them with {ENV_SECRET}")

"""Who may write into a folder of checkpoints: one job at a time.

On a file system of this host or a shared one it is a lock that the kernel frees when the owner dies, however it dies. Where there are
no locks it is a note, which each save renews; another job takes over from one that has not saved for long. Not here: who may read.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

from ettrain.boost.checkpoint.objectstore import ObjectStorage
from ettrain.boost.checkpoint.storage import LEASE_S, LocalStorage, Lock, Storage, note_of, whoami
from ettrain.errors import UsageError

FILE: Final = ".owner"


class Owner:
    """Exclusive use of a folder of checkpoints, until `release` or the end of the process.

    Raises:
        UsageError: another job has it, says which; or the folder cannot be written.
    """

    def __init__(self, storage: Storage, who: Mapping[str, Any]) -> None:
        self.storage = storage
        self.who = {**who, **whoami(), "token": secrets.token_hex(8)}
        self._lock: Lock | None = None
        if isinstance(storage, LocalStorage):
            self._lock = _lock(storage, self.who)
        elif isinstance(storage, ObjectStorage):
            other = _note(storage)
            if _is_anothers(other, self.who):
                raise UsageError(_taken(storage, other))
            self._write()
        self._pid = os.getpid()

    @property
    def held(self) -> bool:
        """Whether it is still ours: not after `release`, and not in a forked child."""
        return self._pid == os.getpid()

    def renew(self) -> None:
        """Say that we are still there, where that takes a note.

        Raises:
            UsageError: another job has taken over meanwhile.
        """
        if isinstance(self.storage, ObjectStorage):
            other = _note(self.storage)
            if other.get("token") != self.who["token"] and other:
                raise UsageError(_taken(self.storage, other))
            self.who["since_ns"] = whoami()["since_ns"]
            self._write()

    def release(self) -> None:
        """Give it up."""
        if not self.held:
            return
        self._pid = -1
        if self._lock is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._lock.fd, 0)
            self._lock.release()
        elif isinstance(self.storage, ObjectStorage) and _note(self.storage).get("token") == self.who["token"]:
            with contextlib.suppress(FileNotFoundError):
                self.storage.fs.rm_file(f"{self.storage.root}/{FILE}")

    def _write(self) -> None:
        if isinstance(self.storage, ObjectStorage):
            with contextlib.suppress(NotImplementedError):  # a file system behind fsspec has folders, an object store has none
                self.storage.fs.makedirs(self.storage.root, exist_ok=True)
            self.storage.fs.pipe_file(f"{self.storage.root}/{FILE}", json.dumps(self.who).encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


def _lock(storage: LocalStorage, who: Mapping[str, Any]) -> Lock:
    path = os.path.join(storage.address, FILE)
    try:
        os.makedirs(storage.address, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise UsageError(f"{storage.address}: cannot be written: {error.strerror}. Name a folder that this job may write.") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        other = note_of(os.pread(fd, 4096, 0))
        os.close(fd)
        raise UsageError(_taken(storage, other)) from None
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL):  # no locks here: on trust
            os.close(fd)
            raise
    with contextlib.suppress(OSError):  # the note is for people, the lock counts
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(who).encode(), 0)
    return Lock(fd)


def _note(storage: ObjectStorage) -> Mapping[str, Any]:
    try:
        return note_of(storage.fs.cat_file(f"{storage.root}/{FILE}"))
    except FileNotFoundError:
        return {}


def _is_anothers(other: Mapping[str, Any], who: Mapping[str, Any]) -> bool:
    """Whether a note is that of another job which has saved not long ago. One without a name cannot be told from an earlier attempt of ours."""
    fresh = who["since_ns"] - int(other.get("since_ns") or 0) < LEASE_S * 1_000_000_000
    return fresh and bool(other.get("job")) and bool(who.get("job")) and other["job"] != who["job"]


def _taken(storage: Storage, other: Mapping[str, Any]) -> str:
    job = f"job {other['job']}" if other.get("job") else "another job"
    where = f"process {other['pid']} on {other['host']}" if other.get("pid") and other.get("host") else "a process that did not say which"
    return f"{storage.address}: {job} is saving its checkpoints there ({where}). Give each job a folder of its own, or end that one first."

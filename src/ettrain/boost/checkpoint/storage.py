"""Where checkpoints lie: the few operations that `folder` needs, on a file system of this host and on an fsspec address.

Here is what differs between the two: how a name is made exclusively, how a file appears whole or not at all, and how others are kept
away. Not here: what a checkpoint is, and any decision. Standard library only; fsspec is imported for addresses that are no paths.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol

from ettrain import clock
from ettrain.errors import UsageError

CHUNK_BYTES: Final = 4 << 20
LEASE_S: Final = 3600
"""Where there are no locks, a note that somebody reads or owns counts for so long after it was written."""
_NO_LOCKS: Final = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF)


class Storage(Protocol):
    """A place that holds checkpoints as folders of files."""

    address: str
    local: bool

    def path(self, name: str) -> str:
        """Address of the folder `name`, e.g. for DCP's writer."""

    def names(self) -> list[str]:
        """Everything in the place that is a folder; [] where there is no such place yet."""

    def taken(self) -> list[str]:
        """Everything in the place, folder or not."""

    def make(self, name: str, mark: str, data: bytes) -> bool:
        """Make the folder with the file `mark` in it; False where the name is taken."""

    def files(self, name: str) -> dict[str, int]:
        """Files of the folder with their sizes; what is a folder inside has size -1."""

    def read(self, name: str, file: str) -> bytes:
        """A file's content."""

    def chunks(self, name: str, file: str) -> Iterator[bytes | memoryview]:
        """A file's content, piece by piece; a piece is valid until the next is asked for."""

    def settle(self, name: str) -> None:
        """What was written into the folder survives a loss of power."""

    def put(self, name: str, file: str, data: bytes, *, over: str) -> None:
        """Let a file appear with all of its content or not at all; the file `over` is gone then."""

    def rename(self, name: str, file: str, new: str) -> None:
        """Give a small file another name."""

    def remove(self, name: str, file: str) -> None:
        """Remove a file; that it is gone already is as good."""

    def remove_folder(self, name: str) -> None:
        """Remove the folder, which is empty; that it is gone already is as good."""

    def removable(self, name: str) -> bool:
        """Whether the folder is one itself, and no link to something elsewhere."""

    def hold(self, name: str, file: str, *, alone: bool) -> Held | None:
        """Keep others from removing (or, alone, also from reading) a file; None where somebody is there already."""


class Held(Protocol):
    """Something held."""

    def release(self) -> None:
        """Let go; again is as good."""


class Lock:
    """An open file with a lock on it, which the kernel frees when the process dies. No child inherits it, forked or not."""

    _all: Final[weakref.WeakSet[Lock]] = weakref.WeakSet()

    def __init__(self, fd: int) -> None:
        self.fd = fd
        Lock._all.add(self)

    def release(self) -> None:
        """Let go."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    @classmethod
    def in_child(cls) -> None:
        """A fork copied our descriptors: the lock must end with the parent, not with its last child."""
        for lock in list(cls._all):
            lock.release()


os.register_at_fork(after_in_child=Lock.in_child)


class LocalStorage:
    """A folder of a file system of this host, also a shared one."""

    local = True

    def __init__(self, address: str) -> None:
        self.address = os.path.abspath(address)
        if os.path.exists(self.address) and not os.path.isdir(self.address):
            raise UsageError(f"{address}: is not a folder")

    def path(self, name: str) -> str:  # noqa: D102 - see Storage
        return os.path.join(self.address, name)

    def taken(self) -> list[str]:  # noqa: D102
        try:
            return os.listdir(self.address)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UsageError(f"{self.address}: cannot be read: {error.strerror}") from None

    def names(self) -> list[str]:  # noqa: D102
        return [name for name in self.taken() if os.path.isdir(self.path(name))]

    def make(self, name: str, mark: str, data: bytes) -> bool:  # noqa: D102
        os.makedirs(self.address, exist_ok=True)
        try:
            os.mkdir(self.path(name))
        except FileExistsError:
            return False
        try:
            _write(os.path.join(self.path(name), mark), data)
        except OSError:  # a full disk: leave nothing of it
            with contextlib.suppress(OSError):
                self.remove(name, mark)
                self.remove_folder(name)
            raise
        return True

    def files(self, name: str) -> dict[str, int]:  # noqa: D102
        with os.scandir(self.path(name)) as entries:
            return {entry.name: -1 if entry.is_dir() else entry.stat().st_size for entry in entries}

    def read(self, name: str, file: str) -> bytes:  # noqa: D102
        with open(os.path.join(self.path(name), file), "rb") as opened:
            return opened.read()

    def chunks(self, name: str, file: str) -> Iterator[bytes | memoryview]:  # noqa: D102
        buffer = memoryview(bytearray(CHUNK_BYTES))
        with open(os.path.join(self.path(name), file), "rb", buffering=0) as opened:
            while count := opened.readinto(buffer):
                yield buffer[:count]

    def settle(self, name: str) -> None:  # noqa: D102
        _sync_folder(self.path(name))

    def put(self, name: str, file: str, data: bytes, *, over: str) -> None:  # noqa: D102
        folder = self.path(name)
        _write(os.path.join(folder, over), data)
        os.replace(os.path.join(folder, over), os.path.join(folder, file))
        _sync_folder(folder)
        _sync_folder(self.address)

    def rename(self, name: str, file: str, new: str) -> None:  # noqa: D102
        os.replace(os.path.join(self.path(name), file), os.path.join(self.path(name), new))

    def remove(self, name: str, file: str) -> None:  # noqa: D102
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.path(name), file))

    def remove_folder(self, name: str) -> None:  # noqa: D102
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(self.path(name))

    def removable(self, name: str) -> bool:  # noqa: D102
        return os.path.isdir(self.path(name)) and not os.path.islink(self.path(name))

    def hold(self, name: str, file: str, *, alone: bool) -> Held | None:  # noqa: D102
        path = os.path.join(self.path(name), file)
        try:
            fd = os.open(path, (os.O_RDWR if alone else os.O_RDONLY) | os.O_CLOEXEC)
        except PermissionError:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                os.close(fd)
                raise
        if not _still_there(fd, path):  # it was removed or replaced between opening and locking
            os.close(fd)
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return Lock(fd)


def _still_there(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def _write(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):  # some network file systems cannot
            raise
    finally:
        os.close(fd)


def whoami() -> dict[str, Any]:
    """Host, process and instant, for people and for comparison."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "since_ns": clock.wall_pair()[0]}


def note_of(data: bytes) -> Mapping[str, Any]:
    """What somebody wrote down about himself; {} where it is not readable."""
    try:
        told = json.loads(data)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}

"""Where a saved file goes: beside its place without a name until it is whole, or into a file that the program itself opened."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
import tempfile
from collections.abc import Callable
from typing import Any, Final, Protocol

_NO_TMPFILE: Final = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL)

Opener = Callable[[Any], Any]
"""torch's: what it writes an archive with, for a path or an open file."""


class Target(Protocol):
    """A place for one file."""

    path: str
    """Real path that the program knows it by."""
    inode: tuple[int, int] | None

    def writer(self, opener: Opener) -> Any:
        """torch's writer for it."""

    def appear(self) -> None:
        """All is written: have it on the disk, and under its name."""

    def drop(self) -> None:
        """Close it; leave nothing of what did not appear."""


def target_of(f: Any) -> Target | None:
    """The place that `torch.save(obj, f)` writes to; None where it has to be written at once: what is no plain file of ours alone."""
    try:
        if isinstance(f, (str, os.PathLike)):
            path = os.fspath(f)
            return NewFile(path) if isinstance(path, str) and NewFile.fits(path) else None
        return OpenFile(f) if OpenFile.fits(f) else None
    except OSError:  # torch meets it as well, and says so in its own words
        return None


class NewFile:
    """A new file, which replaces what is under its name in one instant."""

    def __init__(self, path: str) -> None:
        self.inode: tuple[int, int] | None = None
        self._given = os.path.basename(path)
        self.path = os.path.realpath(path)
        self._folder = os.path.dirname(self.path)
        self._hidden = os.path.join(self._folder, f".{os.path.basename(self.path)}.{os.getpid()}-{os.urandom(3).hex()}.ettrain")
        self._named = False
        self._descriptor = self._opened()
        with contextlib.suppress(FileNotFoundError):
            os.fchmod(self._descriptor, stat.S_IMODE(os.lstat(self.path).st_mode))

    @staticmethod
    def fits(path: str) -> bool:
        """Whether a new file can stand for the one that `torch.save` would write into."""
        real = os.path.realpath(path)
        if not os.path.basename(path) or not os.path.isdir(os.path.dirname(real)):
            return False
        try:
            status = os.lstat(real)
        except FileNotFoundError:
            return True
        alone = stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_uid == os.geteuid()
        return alone and os.access(real, os.W_OK)

    def _opened(self) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC
        try:
            return os.open(self._folder, flags | os.O_TMPFILE, 0o666)
        except OSError as error:
            if error.errno not in _NO_TMPFILE:
                raise
        self._named = True
        return os.open(self._hidden, flags | os.O_CREAT | os.O_EXCL, 0o666)

    def writer(self, opener: Opener) -> Any:
        """torch names the members of an archive after the file, so it is shown the file under the name it will have."""
        with tempfile.TemporaryDirectory(prefix="ettrain-") as folder:
            shown = os.path.join(folder, self._given)
            os.symlink(f"/proc/self/fd/{self._descriptor}", shown)
            return opener(shown)

    def appear(self) -> None:
        """On the disk first, then under its name."""
        os.fsync(self._descriptor)
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if not self._named:
                hidden = os.path.basename(self._hidden)
                os.link(f"/proc/self/fd/{self._descriptor}", hidden, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=True)
                self._named = True
            os.rename(self._hidden, self.path)
            self._named = False
            os.fsync(folder)
        finally:
            os.close(folder)

    def drop(self) -> None:
        """Close it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        if self._named:
            with contextlib.suppress(OSError):
                os.unlink(self._hidden)


class OpenFile:
    """A file that the program opened for writing and has not written to. It may close and rename it; other uses of it wait."""

    def __init__(self, file: io.BufferedWriter) -> None:
        self._file = file
        file.flush()
        self._descriptor = os.dup(file.fileno())
        status = os.fstat(self._descriptor)
        self.inode: tuple[int, int] | None = (status.st_dev, status.st_ino)
        self.path = os.readlink(f"/proc/self/fd/{self._descriptor}")

    @staticmethod
    def fits(file: Any) -> bool:
        """Whether it is a plain file, opened for writing, with nothing in it."""
        if type(file) is not io.BufferedWriter or type(file.raw) is not io.FileIO or file.closed:
            return False
        status = os.fstat(file.fileno())
        name = os.readlink(f"/proc/self/fd/{file.fileno()}")
        alone = stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_size == 0
        return alone and file.tell() == 0 and os.path.isfile(name) and "a" not in file.raw.mode

    def writer(self, opener: Opener) -> Any:
        """torch's writer for open files."""
        return opener(self)

    def write(self, data: Any) -> int:
        """For torch's writer. The position in the file is the program's as well."""
        left = memoryview(data).cast("B")
        total = len(left)
        while left:
            left = left[os.write(self._descriptor, left) :]
        return total

    def flush(self) -> None:
        """For torch's writer: nothing is held back."""

    def guard(self, wait: Callable[[], None]) -> None:
        """Let every use of the program's file but closing and flushing wait until it is written."""
        file: Any = self._file
        names = ("write", "writelines", "seek", "tell", "truncate")

        def waiting(name: str) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                wait()
                for one in names:
                    vars(file).pop(one, None)
                return getattr(file, name)(*args, **kwargs)

            return call

        for name in names:
            setattr(file, name, waiting(name))

    def appear(self) -> None:
        """Have it on the disk; its name is the program's business."""
        os.fsync(self._descriptor)

    def drop(self) -> None:
        """Close our descriptor of it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

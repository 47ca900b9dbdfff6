"""The program's own file operations see its saves as done: what needs one waits for it, what follows one is done after it.

Two means. Python's audit hook sees every opening, listing, renaming, removing and starting of a process, whoever asks, and can wait
before it happens. A few functions of `os` are replaced: those that only look (`stat`, ...), which the hook does not see, and those that
need not wait because they can be done later in the same order (`replace`, `remove`, `fsync`). Not seen: other processes.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import tempfile
from collections.abc import Callable
from typing import Any, Final

from ettrain.boost.existing.pending import Pending, Work, ours
from ettrain.record.hooks.wrap import wraps

_WRITES: Final = os.O_WRONLY | os.O_RDWR
_CHANGES: Final[dict[str, tuple[int, ...]]] = {
    "os.remove": (0,),
    "os.rename": (0, 1),
    "os.rmdir": (0,),
    "os.link": (0, 1),
    "os.symlink": (1,),
    "os.truncate": (0,),
    "shutil.rmtree": (0,),
}
"""Audit event -> which of its arguments are paths. What these do to other files must not be there before the save is."""
_PROGRAMS: Final = frozenset({"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn"})
_ELSEWHERE: Final = ("/proc/", "/sys/", "/dev/")


def real(path: Any) -> str:
    """Where a path's last part really stands; what that part itself links to is not followed."""
    text = os.fsdecode(path)
    folder, name = os.path.split(text)
    return os.path.join(_realpath(folder or "."), name) if name not in ("", ".", "..") else _realpath(text)


def _realpath(folder: str) -> str:
    ours.depth += 1
    try:
        return os.path.realpath(folder)
    finally:
        ours.depth -= 1


class Sights:
    """What the program sees and does while saves are pending."""

    def __init__(self, pending: Pending) -> None:
        self._pending = pending
        self._pid = os.getpid()
        self._temporary = tempfile.gettempdir() + "/"  # now: the first call opens files under a lock, and so would call us again
        self.rename = os.rename
        self.remove = os.remove
        self.lstat = os.lstat

    def concerned(self) -> bool:
        """Whether a call on this thread has to look at what is pending."""
        return self._pending.active and not ours.depth and os.getpid() == self._pid

    def look(self, path: Any) -> None:
        """The program looks at a path."""
        if self.concerned() and isinstance(path, (str, bytes, os.PathLike)):
            text = real(path)
            if self._pending.concerns(text) or self._pending.concerns(_realpath(text)):
                self._pending.wait()

    def list(self, path: Any) -> None:
        """The program lists a folder."""
        if isinstance(path, int) or self._pending.within(_realpath(os.fsdecode("." if path is None else path))):
            self._pending.wait()

    def change(self, *paths: Any) -> None:
        """The program changes names or contents of files: not before its saves are done, and not if one failed."""
        if not self._pending.untold and all(self._apart(path) for path in paths):
            return
        self._pending.settle()

    def _apart(self, path: Any) -> bool:
        """Whether a file has nothing to do with checkpoints: temporary ones, devices, compiled Python."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return False
        text = os.path.abspath(os.fsdecode(path))
        if self._pending.concerns(text) or self._pending.concerns(real(text)):
            return False
        if text.startswith(_ELSEWHERE) or "/__pycache__/" in text:
            return True
        return text.startswith(self._temporary) and not any(one.startswith(self._temporary) for one in self._pending.results)

    def later_rename(self, source: Any, target: Any) -> bool:
        """Have a rename of what is being saved done after it; False where it cannot be foreseen that it will succeed."""
        before, after = real(source), real(target)
        if before not in self._pending.results or before == after:
            return False
        folder = os.path.dirname(after)
        if not self._writable(folder) or os.stat(folder).st_dev != os.stat(os.path.dirname(before)).st_dev:
            return False
        try:
            if stat.S_ISDIR(self.lstat(after).st_mode):
                return False
        except FileNotFoundError:
            pass

        def run() -> None:
            self.rename(before, after)
            for one in {folder, os.path.dirname(before)}:
                _on_disk(one)

        return self._pending.follow(Work(what=after, run=run, paths=(before, after), moves=(before, after)))

    def later_remove(self, path: Any) -> bool:
        """Have the removal of another file done after the saves; False where that cannot be."""
        text = real(path)
        if self._pending.concerns(text) or self._apart(path):
            return False
        status = self.lstat(text)
        if stat.S_ISDIR(status.st_mode) or not self._writable(os.path.dirname(text)):
            return False
        return self._pending.follow(Work(what=f"and removing {text}", run=lambda: self.remove(text), paths=(text,)))

    def _writable(self, folder: str) -> bool:
        return os.access(folder, os.W_OK | os.X_OK) and not os.stat(folder).st_mode & stat.S_ISVTX


def _on_disk(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def watch(pending: Pending) -> None:
    """Begin; once per process."""
    sights = Sights(pending)
    os.register_at_fork(after_in_child=pending.forget)
    sys.addaudithook(_hook(sights))
    for name in ("stat", "lstat", "access", "readlink"):
        _replace(name, _looking(sights, getattr(os, name)))
    _replace("rename", _renaming(sights, os.rename))
    _replace("replace", _renaming(sights, os.replace))
    _replace("remove", _removing(sights, os.remove))
    _replace("unlink", _removing(sights, os.unlink))
    _replace("fsync", _syncing(sights, pending, os.fsync))
    _replace("fdatasync", _syncing(sights, pending, os.fdatasync))
    _replace("fstat", _measuring(sights, pending, os.fstat))


def _hook(sights: Sights) -> Callable[[str, tuple[Any, ...]], None]:
    pending = sights._pending

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if not pending.active:
            return
        if event == "open":
            if sights.concerned():
                _opening(sights, args)
        elif event in _CHANGES:
            if sights.concerned():
                sights.change(*(args[index] for index in _CHANGES[event]))
        elif event in ("os.listdir", "os.scandir"):
            if sights.concerned():
                sights.list(args[0])
        elif event in _PROGRAMS and sights.concerned():
            pending.settle()

    return hook


def _opening(sights: Sights, args: tuple[Any, ...]) -> None:
    path, _, flags = args
    if isinstance(path, int) or path is None:
        return
    sights.look(path)
    writes = isinstance(flags, int) and flags & _WRITES
    if writes and not flags & os.O_APPEND and flags & getattr(os, "O_TMPFILE", 0) != getattr(os, "O_TMPFILE", -1):
        sights.change(path)


def _replace(name: str, function: Callable[..., Any]) -> None:
    """Put a function in the place of one of `os`, also where `os` says what its functions can do."""
    before = getattr(os, name)
    setattr(os, name, function)
    for known in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
        if before in known:
            known.add(function)


def _looking(sights: Sights, function: Callable[..., Any]) -> Callable[..., Any]:
    pending = sights._pending

    @wraps(function)
    def look(path: Any, *args: Any, **kwargs: Any) -> Any:
        if pending.active and kwargs.get("dir_fd") is None:
            sights.look(path)
        return function(path, *args, **kwargs)

    return look


def _renaming(sights: Sights, function: Callable[..., Any]) -> Callable[..., Any]:
    pending = sights._pending

    @wraps(function)
    def rename(src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        if pending.active and src_dir_fd is None and dst_dir_fd is None and sights.concerned() and _later(sights.later_rename, src, dst):
            return
        function(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    return rename


def _removing(sights: Sights, function: Callable[..., Any]) -> Callable[..., Any]:
    pending = sights._pending

    @wraps(function)
    def remove(path: Any, *, dir_fd: int | None = None) -> None:
        if pending.active and dir_fd is None and sights.concerned() and _later(sights.later_remove, path):
            return
        function(path, dir_fd=dir_fd)

    return remove


def _later(attempt: Callable[..., bool], *paths: Any) -> bool:
    """Whether it will be done later; whatever is unusual is left to the function itself, which waits."""
    ours.depth += 1
    try:
        return attempt(*paths)
    except (OSError, TypeError, ValueError):
        return False
    finally:
        ours.depth -= 1


def _syncing(sights: Sights, pending: Pending, function: Callable[..., Any]) -> Callable[..., Any]:
    """A file that is being written is put on the disk by us."""

    @wraps(function)
    def fsync(fd: Any) -> None:
        if pending.active and sights.concerned() and _held(pending, fd):
            return
        function(fd)

    return fsync


def _measuring(sights: Sights, pending: Pending, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def fstat(fd: Any) -> Any:
        if pending.active and sights.concerned() and _held(pending, fd):
            pending.wait()
        return function(fd)

    return fstat


def _held(pending: Pending, file: Any) -> bool:
    ours.depth += 1
    try:
        status = os.fstat(file if isinstance(file, int) else file.fileno())
    except (OSError, ValueError, AttributeError) as error:
        if isinstance(error, OSError) and error.errno != errno.EBADF:
            raise
        return False
    finally:
        ours.depth -= 1
    return pending.holds((status.st_dev, status.st_ino))

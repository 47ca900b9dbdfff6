"""The training's side of the writer process: its image in shared memory, and one order to write at a time.

The image has no name in any file system (a `memfd`), so nothing is left of it after a SIGKILL, and no limit on `/dev/shm` applies.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ettrain.boost.checkpoint import writer
from ettrain.boost.checkpoint.manifest import FileEntry
from ettrain.errors import CheckpointSaveError

_END_S: Final = 5.0
_POPULATE_WRITE: Final = 23
"""MADV_POPULATE_WRITE: pages are made in one go instead of one fault each. Linux 5.14."""
_LIBC: Final = ctypes.CDLL(None)


class Image:
    """Bytes that this process fills and the writer process writes."""

    def __init__(self, size: int) -> None:
        self.size = max(writer.PAGE, -(-size // writer.PAGE) * writer.PAGE)
        self.descriptor = os.memfd_create("ettrain-checkpoint", os.MFD_CLOEXEC)
        os.ftruncate(self.descriptor, self.size)
        self.memory = mmap.mmap(self.descriptor, self.size)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def put(self, offset: int, data: bytes | memoryview) -> None:
        """Copy a few bytes in."""
        self.memory[offset : offset + len(data)] = data

    def fill(self, offset: int, source: int, size: int) -> None:
        """Copy `size` bytes from the address `source`, on this thread alone and without the GIL."""
        if offset < 0 or size < 0 or offset + size > self.size:
            raise ValueError(f"{size} bytes at {offset} of an image of {self.size}")
        ctypes.memmove(self.address + offset, source, size)

    def touch(self) -> None:
        """Have every page before the first copy needs it, without the GIL."""
        for begin in range(0, self.size, writer.CHUNK):
            size = min(writer.CHUNK, self.size - begin)
            if _LIBC.madvise(ctypes.c_void_p(self.address + begin), ctypes.c_size_t(size), _POPULATE_WRITE):
                ctypes.memset(self.address + begin, 0, size)

    def close(self) -> None:
        """Give the memory back once nobody refers to it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """New files to be written."""

    folder: str
    """Where; in an object store below `remote`."""
    remote: str = ""
    """Address of an object store; '' = the folder is one of a file system."""
    name: str = ""
    """File that is written from the image."""
    size: int = 0
    """Its bytes; 0 = none is."""
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    """Further files and their content."""


class Writer:
    """A writer process, started when it is first needed, and again when it has died."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None
        self._image: Image | None = None
        self._end: weakref.finalize[Any, Any] | None = None
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """The process, where there is one."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Have the process at hand.

        Raises:
            CheckpointSaveError: it cannot be started.
        """
        if self._process is not None and self._process.poll() is None:
            return
        self._drop()
        ours, theirs = socket.socketpair()
        try:
            command = [sys.executable, "-I", writer.__file__, str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        except OSError as error:
            ours.close()
            raise CheckpointSaveError(f"the writer process cannot be started: {error}") from None
        finally:
            theirs.close()
        self._sock = ours
        self._image = None
        self._end = weakref.finalize(self, _end, self._process, ours, os.getpid())

    def share(self, image: Image, timeout: float) -> None:
        """Let the process map `image`, which it writes from now on.

        Raises:
            CheckpointSaveError: it died, cannot get the memory, or does not answer.
        """
        with self._lock:
            self.start()
            if self._image is not image:
                self._ask({"do": "image", "size": image.size}, timeout=timeout, fds=(image.descriptor,))
                self._image = image

    def write(self, order: Order, image: Image | None, timeout: float) -> dict[str, FileEntry]:
        """Write new files.

        Args:
            order: what and where.
            image: what the order's file is written from; None where it has only blobs.
            timeout: seconds until the process is given up.

        Raises:
            CheckpointSaveError: what failed, in words. The process is started anew for the next save if it is to blame.
        """
        if image is not None:
            self.share(image, timeout)
        files: list[tuple[str, int | None]] = [(order.name, order.size)] if order.size else []
        files += [(name, None) for name in order.blobs]
        message = {"do": "write", "files": files, "folder": order.folder, "remote": order.remote}
        if order.remote:
            message["sys_path"] = sys.path
        with self._lock:
            self.start()
            answer = self._ask(message, timeout=timeout, blobs=tuple(order.blobs.values()))
        return {name: FileEntry(bytes=entry["bytes"], crc32=entry["crc32"]) for name, entry in answer["files"].items()}

    def _ask(self, message: dict[str, Any], *, timeout: float, blobs: tuple[bytes, ...] = (), fds: Sequence[int] = ()) -> dict[str, Any]:
        sock, process = self._sock, self._process
        if sock is None or process is None:
            raise CheckpointSaveError("the writer process is not there")
        try:
            sock.settimeout(timeout)
            writer.send(sock, message, blobs, tuple(fds))
            answer, _, _ = writer.receive(sock)
        except TimeoutError:
            process.kill()
            self._drop()
            raise CheckpointSaveError(f"the writer process did not finish within {timeout:.0f} s and was stopped") from None
        except (EOFError, OSError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
            told = _ended(process.returncode)
            self._drop()
            raise CheckpointSaveError(f"the writer process {told}") from None
        if "error" in answer:
            raise CheckpointSaveError(answer["error"])
        return answer

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        self._sock = self._process = self._image = None
        if self._end is not None:
            self._end()


def _end(process: subprocess.Popen[bytes], sock: socket.socket, pid: int) -> None:
    """Let a writer process end; also called when nobody refers to its `Writer` any more."""
    sock.close()
    if pid != os.getpid():  # a forked child closes its end, and leaves its parent's process alone
        return
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _ended(code: int | None) -> str:
    if code is None:
        return "closed its connection"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

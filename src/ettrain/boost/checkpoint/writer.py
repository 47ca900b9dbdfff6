"""The process that writes checkpoints: staged bytes from shared memory to files, beside the training and out of its way.

It is started as `python -I writer.py FD` and imports nothing but the standard library: it is there in a moment, holds none of the
training's GIL, and its memory is the staged image itself, which both processes map. Where the file system allows it the bytes go
from there to the disk by direct I/O: no copy, no page cache, hardly any CPU time.

One message is a frame: 4 bytes of length, JSON, then its blobs. The image's descriptor comes along with the message `image`.
It ends when its socket does: with the training process, in whatever way that ended.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import mmap
import os
import select
import signal
import socket
import struct
import sys
import threading
import zlib
from collections.abc import Iterator
from typing import Any, Final

CHUNK: Final = 16 << 20
"""Bytes of one write."""
PAGE: Final = 4096
NICE: Final = 10
"""The training's threads come first where cores are scarce."""
_HEAD: Final = struct.Struct("<II")


def send(sock: socket.socket, message: dict[str, Any], blobs: tuple[bytes, ...] = (), fds: tuple[int, ...] = ()) -> None:
    """Send one message.

    Raises:
        OSError: the other side is gone.
    """
    text = json.dumps({**message, "blobs": [len(blob) for blob in blobs]}).encode()
    head = _HEAD.pack(len(text), len(fds))
    if fds:
        socket.send_fds(sock, [head], list(fds))
    else:
        sock.sendall(head)
    sock.sendall(text)
    for blob in blobs:
        sock.sendall(blob)


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[bytes], list[int]]:
    """Wait for one message.

    Raises:
        EOFError: the other side is gone.
        TimeoutError: the socket's timeout passed.
    """
    head, fds, _, _ = socket.recv_fds(sock, _HEAD.size, 1)
    head += _exactly(sock, _HEAD.size - len(head))
    size, _ = _HEAD.unpack(head)
    message: dict[str, Any] = json.loads(_exactly(sock, size))
    return message, [_exactly(sock, length) for length in message.pop("blobs")], list(fds)


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = sock.recv(min(size - len(data), 1 << 20))
        if not more:
            raise EOFError
        data += more
    return bytes(data)


class TrainerGoneError(Exception):
    """The training process ended during a write."""


def main(descriptor: int) -> None:
    """Serve until the other side is gone."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(NICE)
    with socket.socket(fileno=descriptor) as sock, contextlib.suppress(EOFError, ConnectionError, BrokenPipeError, TrainerGoneError):
        _serve(sock)


def _serve(sock: socket.socket) -> None:
    image = mmap.mmap(-1, PAGE)
    while True:
        message, blobs, fds = receive(sock)
        if message["do"] == "image":
            image.close()
            image = _mapped(fds[0], message["size"])
            send(sock, {"ok": True})
            continue
        try:
            done = {}
            for name, size in message["files"]:
                with memoryview(blobs.pop(0) if size is None else image)[:size] as data:
                    done[name] = _write(sock, message, name, data, direct=size is not None)
        except OSError as error:
            send(sock, {"error": f"{error.filename or message['folder']}: {error.strerror or error}"})
        except TrainerGoneError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a file system's package raises is the save's failure, said to the trainer
            send(sock, {"error": f"{message['folder']}: {type(error).__name__}: {error}"})
        else:
            send(sock, {"files": done})


def _mapped(descriptor: int, size: int) -> mmap.mmap:
    try:
        return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)


def _write(sock: socket.socket, message: dict[str, Any], name: str, data: memoryview, *, direct: bool) -> dict[str, Any]:
    """One file, and meanwhile its checksum."""
    sums: list[int] = []
    summing = threading.Thread(target=lambda: sums.append(_crc32(data)))
    summing.start()
    try:
        if message["remote"]:
            _upload(sock, message, name, data)
        else:
            _store(sock, os.path.join(message["folder"], name), data, direct=direct)
    finally:
        summing.join()
    return {"bytes": len(data), "crc32": f"{sums[0]:08x}"}


def _crc32(data: memoryview) -> int:
    total = 0
    for begin in range(0, len(data), CHUNK):
        total = zlib.crc32(data[begin : begin + CHUNK], total)
    return total


def _store(sock: socket.socket, path: str, data: memoryview, *, direct: bool) -> None:
    """A new file, on the disk when this returns."""
    with _opened(path, direct=direct) as descriptor:
        done = 0
        try:
            for chunk in _chunks(sock, data[: len(data) // PAGE * PAGE]):
                done = _all(descriptor, chunk, done)
        except OSError as error:
            if not direct or error.errno != errno.EINVAL:
                raise
        if done < len(data):  # the end of a page, or a file system that takes no direct I/O of this kind
            fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~getattr(os, "O_DIRECT", 0))
            for chunk in _chunks(sock, data[done:]):
                done = _all(descriptor, chunk, done)
        os.fsync(descriptor)


@contextlib.contextmanager
def _opened(path: str, *, direct: bool) -> Iterator[int]:
    """A new file for writing, by direct I/O where it is wanted and can be."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    wanted = getattr(os, "O_DIRECT", 0) if direct else 0
    try:
        descriptor = os.open(path, flags | wanted, 0o644)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        with contextlib.suppress(FileNotFoundError):  # some file systems make the file before they refuse the flag
            os.unlink(path)
        descriptor = os.open(path, flags, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _all(descriptor: int, data: memoryview, at: int) -> int:
    """Write all of it; where the file ends then."""
    while data:
        written = os.pwrite(descriptor, data, at)
        data, at = data[written:], at + written
    return at


def _upload(sock: socket.socket, message: dict[str, Any], name: str, data: memoryview) -> None:
    """A new object of a store that fsspec knows."""
    sys.path[:] = message["sys_path"]
    from fsspec.core import url_to_fs

    file_system, root = url_to_fs(message["remote"])
    with file_system.open(f"{root}/{message['folder']}/{name}", "wb") as file:
        for chunk in _chunks(sock, data):
            file.write(chunk)


def _chunks(sock: socket.socket, data: memoryview) -> Iterator[memoryview]:
    """The data in pieces, as long as the training process is there."""
    for begin in range(0, len(data), CHUNK):
        ready, _, _ = select.select([sock], [], [], 0)
        if ready and not sock.recv(1, socket.MSG_PEEK):
            raise TrainerGoneError
        yield data[begin : begin + CHUNK]


if __name__ == "__main__":
    main(int(sys.argv[1]))

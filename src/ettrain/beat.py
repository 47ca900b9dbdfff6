"""The beat page: one memory-mapped page per process that holds its last step and its open stages, and survives SIGKILL.

Layout: `events.BEAT_SLOTS` unsigned 64-bit integers in the machine's byte order. A slot is written by one aligned 8-byte store,
never through `struct.pack_into`, which zeroes its target first and loses the value when the process dies in between.
The file is allocated before it is mapped: a store into a hole of a full disk would end the process with SIGBUS.
"""

from __future__ import annotations

import mmap
import os
import sys
from array import array
from pathlib import Path

from ettrain import events as e

_SIZE = 8 * e.BEAT_SLOTS


def open_beat(path: str | os.PathLike[str], pid: int) -> e.Slots:
    """Create the page and map it.

    Returns:
        The slots; stores are visible to every reader of the file at once and survive the process.
    Raises:
        OSError: no room, no permission, or a file system that cannot allocate ahead.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.posix_fallocate(fd, 0, _SIZE)
        page = mmap.mmap(fd, _SIZE)
    finally:
        os.close(fd)
    slots = memoryview(page).cast("B").cast("Q")
    slots[e.B_PID] = pid
    slots[e.B_MAGIC] = e.BEAT_MAGIC
    return slots


def memory_beat() -> e.Slots:
    """Slots that live in this process only: where no page can be had, counting goes on and survives everything but SIGKILL."""
    return array("Q", bytes(_SIZE))


def read_beat(path: Path) -> e.Beat | None:
    """The page of that file, or None where there is none that ettrain wrote on a machine of this byte order."""
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    if len(raw) < _SIZE or int.from_bytes(raw[:8], sys.byteorder) != e.BEAT_MAGIC:
        return None
    slots = array("Q")
    slots.frombytes(raw[:_SIZE])
    return e.beat_from(slots)

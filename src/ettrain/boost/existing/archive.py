"""What `torch.save` hands to its zip writer: kept, and written later by that very writer, so that the file is the same byte for byte.

`Kept` stands in for the writer while `torch.save` runs: the pickled part is kept as it is, every storage is copied. Where memory is
scarce it stops keeping and lets torch write at once. Not here: where the file goes (see `target`).
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

import torch

SHARE: Final = 0.5
"""Of the memory that is available, copies take no more than this."""
_HUGE: Final = 4 << 20


class Slot:
    """Memory for a copy of one storage, which forked children do not inherit."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._memory.madvise(mmap.MADV_DONTFORK)
        if size >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self.storage = torch.frombuffer(self._memory, dtype=torch.uint8).untyped_storage()

    def fill(self, storage: Any) -> None:
        """Copy a CPU storage in, on this thread alone and without the GIL."""
        ctypes.memmove(self.storage.data_ptr(), storage.data_ptr(), self.size)


class Slots:
    """The copies' memory, used by save after save."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._free: dict[int, list[Slot]] = {}
        self._free_bytes = 0
        self._largest = 0
        """Bytes of the largest save so far: more than that is not held between saves."""

    def take(self, size: int) -> Slot | None:
        """Memory of that size; None where there is not enough."""
        with self._lock:
            found = self._free.get(size)
            if found:
                self._free_bytes -= size
                return found.pop()
            if size > SHARE * available_bytes():
                self._drop()
                if size > SHARE * available_bytes():
                    return None
            return Slot(size)

    def give(self, slots: list[Slot]) -> None:
        """Have them for the next save."""
        total = sum(slot.size for slot in slots)
        with self._lock:
            self._largest = max(self._largest, total)
            if self._free_bytes + total > self._largest:
                self._drop()
            for slot in slots:
                self._free.setdefault(slot.size, []).append(slot)
            self._free_bytes += total
        slots.clear()

    def _drop(self) -> None:
        self._free.clear()
        self._free_bytes = 0


def available_bytes() -> int:
    """Memory that can be had without swapping, as the kernel or the container's limit says; 0 where they say nothing."""
    found = 0
    try:
        with open("/proc/meminfo", "rb") as file:
            for line in file:
                if line.startswith(b"MemAvailable:"):
                    found = int(line.split()[1]) << 10
                    break
        with open("/sys/fs/cgroup/memory.max", "rb") as most, open("/sys/fs/cgroup/memory.current", "rb") as now:
            limit = most.read().strip()
            return min(found, int(limit) - int(now.read())) if limit.isdigit() else found
    except (OSError, ValueError):
        return found


class Kept:
    """Stands in for torch's zip writer.

    Args:
        slots: memory for the copies.
        writer: torch's own, opened on where the bytes go.
        wait: until earlier saves have given their memory back.
    """

    def __init__(self, slots: Slots, writer: Any, wait: Callable[[], None]) -> None:
        self._slots, self._writer, self._wait = slots, writer, wait
        self._records: list[tuple[str, Any, int]] = []
        self._taken: list[Slot] = []
        self._file: Any = None
        self._ended = False
        self.bytes = 0

    @property
    def at_once(self) -> bool:
        """Whether memory was scarce and torch writes at once."""
        return self._file is not None

    def __enter__(self) -> Self:
        return self

    def write_record(self, name: str, data: Any, size: int) -> None:
        """As torch's writer: one member of the archive."""
        if self._file is not None:
            self._file.write_record(name, data, size)
            return
        if not isinstance(data, (bytes, str)) and size:
            slot = self._copied(data, size)
            if slot is None:
                self.write().write_record(name, data, size)
                return
            data = slot.storage
        self._records.append((name, data, size))
        self.bytes += size

    def _copied(self, data: Any, size: int) -> Slot | None:
        if not isinstance(data, torch.UntypedStorage) or data.device.type != "cpu" or data.nbytes() < size:
            return None
        slot = self._slots.take(size)
        if slot is None:
            self._wait()
            slot = self._slots.take(size)
        if slot is not None:
            self._taken.append(slot)
            slot.fill(data)
        return slot

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """`torch.save` is done; where it raised, nothing of it is written."""
        if kind is not None:
            self.free()

    def write(self) -> Any:
        """Let torch write what was kept so far; members that follow are written at once, by what is returned."""
        if self._file is None:
            self._file = self._writer.__enter__()
        records, self._records = self._records, []
        for name, data, size in records:
            self._file.write_record(name, data, size)
        return self._file

    def finish(self) -> None:
        """Let torch write all of it, and the archive's end."""
        self.write()
        self._ended = True
        self._writer.__exit__(None, None, None)

    def free(self) -> None:
        """Give the memory back. A writer that was not ended must be: left alone, it tries once more when it is collected, and aborts the process."""
        if not self._ended:
            self._ended = True
            with contextlib.suppress(Exception):
                self._writer.__exit__(None, None, None)
        self._records.clear()
        self._slots.give(self._taken)

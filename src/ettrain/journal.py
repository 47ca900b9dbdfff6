"""The only writer and reader of event files.

A record is one line, written by one `write` on an append descriptor: a crash can tear only the last line, which the reader
drops and counts. A reader remembers how far it came, so that asking again costs only what is new.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from ettrain.errors import JournalError
from ettrain.events import SCHEMA, Record, decode_all, encode

_CHUNK = 1 << 22


class JournalWriter:
    """Appends records to one file. Raises OSError where the file system does; what to do then is the caller's business."""

    __slots__ = ("_fd", "_torn", "path")

    def __init__(self, path: str | os.PathLike[str], *, exclusive: bool = False) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | (os.O_EXCL if exclusive else 0)
        self.path = os.fspath(path)
        self._fd = os.open(self.path, flags, 0o644)
        self._torn = False

    def write(self, record: Record) -> None:
        """Append one record; durable against SIGKILL of this process when it returns."""
        self._append(encode(record))

    def write_all(self, records: list[Record]) -> None:
        """Append several records, in one write per full pipe-sized chunk."""
        lines = [encode(record) for record in records]
        for begin in range(0, len(lines), 256):
            self._append(b"".join(lines[begin : begin + 256]))

    def _append(self, data: bytes) -> None:
        """One write. What a full disk cut short is closed by a newline before the next, so that it costs no other line."""
        data = b"\n" + data if self._torn else data
        written = os.write(self._fd, data)
        self._torn = written < len(data)
        if self._torn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)

    def close(self) -> None:
        """Close the file; writing afterwards raises OSError."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class JournalTail:
    """Reads a journal, and later only what was added since.

    Attributes:
        path: the file.
        head: its first record, once read.
        bad_lines: complete lines that are no record (torn by a crash and continued by another writer, or foreign).
        torn: whether the file now ends in an incomplete line.
    """

    __slots__ = ("_offset", "bad_lines", "head", "path", "torn")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.head: Record | None = None
        self.bad_lines = 0
        self.torn = False
        self._offset = 0

    def read_new(self) -> list[Record]:
        """Records added since the last call.

        Raises:
            JournalError: the file cannot be opened, is no journal, or was written by a newer ettrain.
        """
        records: list[Record] = []
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                rest = b""
                while chunk := file.read(_CHUNK):
                    lines = (rest + chunk).split(b"\n")
                    rest = lines.pop()
                    self._offset += sum(map(len, lines)) + len(lines)
                    self._take(lines, records)
                self.torn = bool(rest)
        except OSError as error:
            raise JournalError(str(self.path), f"cannot be read ({error.strerror})", "Check the folder's permissions.") from error
        if self.head is None and (self.bad_lines or self.torn):
            raise JournalError(str(self.path), "is not a journal of ettrain (no head record)", "Remove it from the job's folder.")
        return records

    def _take(self, lines: list[bytes], records: list[Record]) -> None:
        for record in decode_all(lines):
            if record is None:
                self.bad_lines += 1
                continue
            if self.head is None:
                self._accept_head(record)
            records.append(record)

    def _accept_head(self, record: Record) -> None:
        if record["k"] != "head" or not isinstance(record.get("schema"), int):
            raise JournalError(str(self.path), "is not a journal of ettrain (no head record)", "Remove it from the job's folder.")
        if record["schema"] > SCHEMA:
            why = f"has schema {record['schema']}, this ettrain reads up to {SCHEMA}"
            raise JournalError(str(self.path), why, "Upgrade: pip install -U ettrain")
        self.head = record

"""Where a process's records go: into a list that waits, then into its journal. What is lost on the way is counted by the guard."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from ettrain.events import Record
from ettrain.journal import JournalWriter
from ettrain.record.guard import guard
from ettrain.record.rank import head, open_journal

MAX_WAITING: Final = 10_000


class Output:
    """The journal of one process, and what waits for it."""

    __slots__ = ("_headless", "_lost", "journal", "lost", "waiting")

    def __init__(self) -> None:
        self.journal: JournalWriter | None = None
        self.waiting: list[Record] = []
        self.lost = False
        """Whether there is nowhere to write to."""
        self._headless: tuple[JournalWriter, Record] | None = None
        """A journal into which not even the head could be written yet, and that head."""
        self._lost = 0

    def open(self, folder: Path, rank: int | None, world: int | None) -> Path | None:
        """Create the journal and write what waited; returns the path for the beat page, or None where no journal can be had."""
        try:
            journal, beat = open_journal(folder, rank)
        except OSError as error:
            self.lost = True
            self.waiting.clear()
            guard.fault("cannot write a journal, this process is not recorded", error)
            return None
        self._headless = journal, head(rank, world)
        self._write_head()
        if self._lost:
            guard.fault("more was recorded before the first step than fits", f"{self._lost} records lost")
        return beat

    def close_in_child(self) -> None:
        """After a fork: the file is the parent's."""
        if self.journal is not None:
            self.journal.close()

    def emit(self, record: Record) -> None:
        """Write a record, or let it wait."""
        if self.journal is not None:
            self._write(record)
        elif not self.lost:
            if len(self.waiting) < MAX_WAITING:
                self.waiting.append(record)
            else:
                self._lost += 1
            self._write_head()

    def fault(self, record: Record) -> None:
        """Write what the guard has to say, or let it wait; raises where the journal does."""
        if self.journal is not None:
            self.journal.write(record)
        elif not self.lost:
            self.waiting.append(record)

    def _write_head(self) -> None:
        """The head must be the first line: until it could be written, all waits behind it."""
        if self._headless is None:
            return
        (journal, record), self._headless = self._headless, None
        try:
            journal.write(record)
        except OSError as error:
            self._headless = journal, record
            guard.fault("cannot write to the journal", error)
            return
        self.journal = journal
        waiting, self.waiting = self.waiting, []
        self._guarded(lambda: journal.write_all(waiting))

    def _write(self, record: Record) -> None:
        journal = self.journal
        if journal is None:
            return
        if self.waiting:  # another thread saw the journal come too late
            waiting, self.waiting = self.waiting, []
            self._guarded(lambda: journal.write_all(waiting))
        self._guarded(lambda: journal.write(record))

    @staticmethod
    def _guarded(write: Callable[[], None]) -> None:
        try:
            write()
        except Exception as error:  # noqa: BLE001 - the guard's rule
            guard.fault("a journal line was lost", error)

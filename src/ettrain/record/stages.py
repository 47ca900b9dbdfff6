"""The life and the stages of one process's recorder: where its records go, which stages are open, what they took from the steps.

Life: at first records wait in a list, and in most processes do so for ever; it is promoted once the process behaves like a trainer:
it opens its journal and beat page and writes what waited. A forked child starts again. Not here: steps (see `recorder`).
"""

from __future__ import annotations

import os
import sys
from _thread import get_ident, get_native_id
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ettrain import clock
from ettrain import events as e
from ettrain.beat import memory_beat, open_beat
from ettrain.events import B_ACTIVE_T, Record
from ettrain.record.guard import guard
from ettrain.record.output import Output
from ettrain.record.rank import attempt_folder, is_loader_worker, rank_of_environment
from ettrain.settings import ENV_JOB_DIR

_CODES: Final = {name: code for code, name in enumerate(e.FOUND_NAMES)}

now = clock.monotonic_ns


class StageRecorder:
    """Records the stages of one process."""

    __slots__ = ("_born", "_fresh_names", "_open", "_saves", "at_fork", "beat", "lost_ns", "main", "off", "output", "paused", "promoted")

    def __init__(self) -> None:
        self.at_fork: list[Callable[[], None]] = []
        self._reset()
        threads = sys.modules.get("threading")
        if threads is not None and threads.main_thread().ident is not None:
            self.main = threads.main_thread().ident

    def in_child(self) -> None:
        """A fork: the child must not write into its parent's files, and may be a rank of its own."""
        self.output.close_in_child()
        guard.reset()
        self._reset()
        for call in self.at_fork:
            call()

    def _reset(self) -> None:
        self.off = ENV_JOB_DIR not in os.environ
        self.beat: e.Slots = memory_beat()
        self.output = Output()
        self.promoted = False
        self.paused = 0
        """Nesting of `pause.paused`: while it is not 0, nothing counts as training."""
        self.lost_ns = 0
        """Time of the main thread that was no training: in stages and in waits."""
        self.main = get_ident()
        self._born = now()
        """Stages begun before are a parent's, which was forked inside them."""
        self._open: list[tuple[int, int]] = []
        """(begin, `lost_ns` then) of the open stages, outermost first."""
        self._fresh_names: dict[str, int] = {}
        self._saves = 0
        guard.on_fault = self._on_fault

    def promote(self, rank: int | None = None, world: int | None = None) -> None:
        """Open the journal and the beat page, once, unless this process is a helper of a trainer."""
        folder = None if self.promoted or self.off else attempt_folder()
        if folder is None:
            return
        if is_loader_worker():
            self.leave()
            return
        self.promoted = True
        if rank is None:
            rank, world = rank_of_environment()
        beat = self.output.open(folder, rank, world)
        if beat is not None:
            self._map_beat(beat)

    def _map_beat(self, path: Path) -> None:
        try:
            page = open_beat(path, os.getpid())
        except OSError as error:
            guard.fault("no beat page, the last steps before a SIGKILL will not be known", error)
            return
        for slot in range(e.B_PID + 1, e.BEAT_SLOTS):
            if self.beat[slot]:
                page[slot] = self.beat[slot]
        self.beat = page

    def _on_fault(self, where: str, text: str, count: int) -> None:
        self.beat[e.B_FAULTS] = count
        if count & (count - 1) == 0:
            self.output.fault({"k": "fault", "t": now(), "where": where, "error": text, "count": count})

    def emit(self, record: Record) -> None:
        """Write a record, or let it wait; dropped where this process is not recorded."""
        if not self.off:
            self.output.emit(record)

    def leave(self) -> None:
        """Record nothing more: it turned out that this process does not train."""
        self.off = True
        self.output.waiting.clear()

    def open_stage(self, name: str, *, user: bool = False) -> int:
        """Begin a stage; returns its begin. On the main thread it shows on the beat page, so that SIGKILL does not lose it."""
        begin = now()
        if get_ident() == self.main:
            beat = self.beat
            depth = len(self._open)
            if depth < e.MAX_DEPTH:
                beat[e.B_STACK + 2 * depth] = self._code(name, user=user)
                beat[e.B_STACK + 2 * depth + 1] = begin
            beat[e.B_DEPTH] = depth + 1
            self._open.append((begin, self.lost_ns))
        return begin

    def close_stage(self, name: str, begin: int, *, user: bool = False, steps: int = 0, write: bool = True, **more: Any) -> Record:
        """End a stage and write its span.

        Args:
            name: the stage.
            begin: what `open_stage` returned.
            user: whether the program marked it.
            steps: steps counted inside, which make a user's stage a frame, not a wait.
            write: False where the caller writes the record, when it knows more.
            more: attributes.
        Returns:
            The record.
        """
        end = now()
        record: Record = {"k": "span", "t": begin, "name": name, "end": end, "by": "user" if user else "found", **more}
        if steps:
            record["steps"] = steps
        index = self._index(begin)
        if index is None and get_ident() != self.main:
            record["lane"] = get_native_id()
        if write and begin >= self._born:
            self.emit(record)
        if index is not None:
            lost_then = self._open[index][1]
            self._pop(index)
            self.beat[B_ACTIVE_T] = end
            if not steps:
                self.lost_ns = max(self.lost_ns, lost_then + end - begin)
        return record

    def drop_stage(self, begin: int) -> None:
        """End a stage that turned out to be none."""
        index = self._index(begin)
        if index is not None:
            self._pop(index)

    def _index(self, begin: int) -> int | None:
        """Where in the stack of open stages the one begun then stands; None if it never was there."""
        opened = self._open
        for index in range(len(opened) - 1, -1, -1):
            if opened[index][0] == begin:
                return index
        return None

    def _pop(self, index: int) -> None:
        del self._open[index:]
        self.beat[e.B_DEPTH] = index

    def span(self, name: str, begin: int, end: int, *, lost_then: int | None = None, **more: Any) -> None:
        """Write a stage that is known only after the fact; it takes its time from the step it lies in.

        Args:
            name: the stage.
            begin: ns.
            end: ns.
            lost_then: `lost_ns` at `begin`, where spans within this one may have been written already.
            more: attributes.
        """
        self.lost_ns = self.lost_ns + end - begin if lost_then is None else max(self.lost_ns, lost_then + end - begin)
        self.emit({"k": "span", "t": begin, "name": name, "end": end, "by": "found", **more})

    def mark(self, name: str, t: int, **more: Any) -> None:
        """Write an instant."""
        self.emit({"k": "mark", "t": t, "name": name, **more})

    def note(self, text: str) -> None:
        """Write something that a reader of the report should know."""
        self.emit({"k": "note", "t": now(), "text": text})

    def next_save(self) -> int:
        """A number for a checkpoint, by which a later `commit` refers to it."""
        self._saves += 1
        return self._saves

    def imported(self, name: str, begin: int, end: int) -> None:
        """Take an outermost import from the boot module."""
        self.span("imports", begin, end, part=import_part(name))

    def _code(self, name: str, *, user: bool) -> int:
        code = None if user else _CODES.get(name)
        if code is None:
            code = self._fresh_names.get(name)
            if code is None:
                code = self._fresh_names[name] = e.FIRST_USER_CODE + len(self._fresh_names)
                self.emit({"k": "name", "t": now(), "code": code, "name": name})
        return code


def import_part(module: str) -> str:
    """Label of an import: the distribution's top package, torch's big lazy parts apart."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "torch" else parts[0]

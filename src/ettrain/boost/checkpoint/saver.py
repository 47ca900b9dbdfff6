"""One save after the other: staged and written in the background, whole or not at all, on all ranks alike.

Every rank runs the same save on a thread of its own and meets the others through notes (see `ranks`): once before the writing,
to agree on the step, the structure of the state and the name; once after it, when rank 0 writes the manifest, which makes the
checkpoint exist. Whatever fails on one rank fails the save on all, within the timeout, and leaves the checkpoint before untouched.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from ettrain import __version__, clock
from ettrain.boost.checkpoint import layout as layouts
from ettrain.boost.checkpoint import marks, staging
from ettrain.boost.checkpoint import snapshot as snapshots
from ettrain.boost.checkpoint.folder import CheckpointFolder
from ettrain.boost.checkpoint.layout import StatePlanner
from ettrain.boost.checkpoint.manifest import FileEntry, Manifest
from ettrain.boost.checkpoint.ranks import Notes, Ranks
from ettrain.boost.checkpoint.writing import Order, Writer
from ettrain.errors import CheckpointSaveError, EttrainError

EXTRA: Final = "rank-{:05d}.extra"
_ACK_S: Final = 5.0


@dataclass(slots=True, kw_only=True, eq=False)
class Save:
    """One save under way."""

    number: int
    step: int
    snapshot: snapshots.Snapshot | None
    """None once it is staged."""
    extra: bytes = b""
    """This rank's own file."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """position and metrics, for the manifest."""
    only_plan: bool = False
    """Plan and prepare; save nothing."""
    begun_ns: int = 0
    blocking_ns: int = 0
    """How long the training's loop stood still for it so far."""
    staged_ns: int = 0
    ended_ns: int = 0
    name: str = ""
    error: str = ""
    torn: bool = False
    holds_up: bool = False
    """Whether the loop has to wait until all is staged."""
    size: int = 0
    """Bytes this rank wrote."""
    staged: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    ready: dict[Any, Any] = field(default_factory=dict)
    said: set[str] = field(default_factory=set)

    @property
    def ok(self) -> bool:
        """Whether it ended well."""
        return self.ended.is_set() and not self.error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Go:
    """What rank 0 says before the writing."""

    name: str = ""
    replan: bool = False
    error: str = ""


class Saver:
    """The saves of one job's rank.

    Args:
        folder: where to.
        ranks: who takes part.
        timeout: seconds that a rank waits for another or for the writing.
        who: job and attempt, for the manifest.
        committed: called on rank 0, on the save's thread, after a checkpoint has come to exist.
    """

    def __init__(
        self, folder: CheckpointFolder, ranks: Ranks, *, timeout: float, who: Mapping[str, Any], committed: Callable[[Save], None]
    ) -> None:
        self.folder, self.ranks, self.timeout = folder, ranks, timeout
        self._who, self._committed = who, committed
        self.writer = Writer()
        self.holds_up = False
        """Whether the training's loop has to wait until all is staged, since something else than an optimizer's step changes the state."""
        self._number = 0
        self._last: Save | None = None
        self._digest = ""
        self._plan: Any = None
        self._metadata: Any = None
        self._stage: staging.Stage | None = None

    @property
    def image_bytes(self) -> int:
        """Memory of the staged image; 0 before the first plan."""
        return 0 if self._stage is None else self._stage.image.size

    def begin(self, step: int, snapshot: snapshots.Snapshot | None, **more: Any) -> Save:
        """Start a save on a thread of its own, which begins once the one before has ended. All ranks call it for the same steps.

        Args:
            step: steps done.
            snapshot: the state; None where it could not be taken: `error` says why, and the save fails on all ranks.
            **more: further fields of `Save`.
        """
        self._number += 1
        before = self._last
        save = self._last = Save(number=self._number, step=step, snapshot=snapshot, begun_ns=clock.monotonic_ns(), **more)
        save.ready = staging.events()
        threading.Thread(target=self._run, args=(save, before), name=f"ettrain save {step}", daemon=True).start()
        return save

    def close(self) -> None:
        """End the writer process and give the memory back."""
        self.writer.close()
        if self._stage is not None:
            self._stage.close()
            self._stage = None

    # ---- on the save's thread

    def _run(self, save: Save, before: Save | None) -> None:
        if before is not None:
            before.ended.wait()  # its own waits are bounded, and this one needs its image
        notes = self.ranks.background
        entries: dict[str, FileEntry] = {}
        results: list[Any] = []
        try:
            with marks.apart():
                entries, results = self._staged_and_written(save, notes)
        except EttrainError as error:
            save.error = str(error)
        except Exception as error:  # noqa: BLE001 - torch, the program's objects or the file system: the save fails, the training goes on
            save.error = f"{type(error).__name__}: {error}"
        save.snapshot = None
        save.staged.set()
        try:
            self._end(save, notes, entries, results)
        except Exception as error:  # noqa: BLE001 - as above
            save.error = save.error or (str(error) if isinstance(error, EttrainError) else f"{type(error).__name__}: {error}")
        finally:
            save.ended_ns = clock.monotonic_ns()
            save.ended.set()

    def _staged_and_written(self, save: Save, notes: Notes) -> tuple[dict[str, FileEntry], list[Any]]:
        if save.snapshot is None:
            raise CheckpointSaveError(save.error)
        planner = StatePlanner()
        local = planner.local_plan(save.snapshot.state, coordinator=self.ranks.rank == 0)
        digest = layouts.digest(local)
        same = digest == self._digest and self._stage is not None
        self._say(save, notes, "begin", (save.step, same, ""))
        if same and not save.only_plan:
            self._copy(save, planner)
            if not (save.snapshot.must_wait or self.holds_up):
                save.staged.set()
        go = self._agreed(save, notes)
        if go.error:
            raise CheckpointSaveError(go.error)
        if go.replan:
            self._replan(save, notes, planner, local)
            self._digest = digest
            if not save.only_plan:
                self._copy(save, planner)
        if save.only_plan:
            return {}, []
        assert self._stage is not None
        layout = self._stage.layout
        name, data, results = layouts.objects_file(planner, layout, self._plan)
        save.snapshot = None
        save.staged.set()
        blobs = {EXTRA.format(self.ranks.rank): save.extra} | ({name: data} if name else {})
        order = Order(
            folder=self._where(go.name),
            remote="" if self.folder.local else self.folder.address,
            name=layout.name,
            size=layout.size,
            blobs=blobs,
        )
        entries = self.writer.write(order, self._stage.image, self.timeout)
        save.size = sum(entry.bytes for entry in entries.values())
        return entries, [*layout.results, *results]

    def _where(self, name: str) -> str:
        return self.folder.path(name) if self.folder.local else name

    def _copy(self, save: Save, planner: StatePlanner) -> None:
        """Fill the image with the state of the snapshot's instant.

        Raises:
            CheckpointSaveError: it changed meanwhile; or, where the ranks had to plan anew, since then.
        """
        assert self._stage is not None
        assert save.snapshot is not None
        self._stage.copy(planner, save.ready)
        if save.snapshot.torn():
            save.torn = not save.staged.is_set()
            raise CheckpointSaveError(
                "the state changed while it was copied: something else than the given optimizers' step() changes it"
                if save.torn
                else "another rank's state has a new structure, and this one's has moved on: the next save has the new plan"
            )
        save.staged_ns = clock.monotonic_ns()

    def _agreed(self, save: Save, notes: Notes) -> _Go:
        """Rank 0 hears all ranks and says what is done; the others wait for that."""
        if self.ranks.rank != 0:
            go: _Go = notes.take(f"{save.number}/go", self.timeout)
        else:
            begins = notes.take_all(self.ranks.keys(f"{save.number}/begin"), self.timeout)
            go = self._decided(save, begins)
            self._say(save, notes, "go", go, to_all=True)
        save.name = go.name
        return go

    def _decided(self, save: Save, begins: list[tuple[int, bool, str]]) -> _Go:
        failed = next((f"rank {rank}: {error}" for rank, (_, _, error) in enumerate(begins) if error), "")
        if failed:
            return _Go(error=failed)
        steps = {step for step, _, _ in begins}
        if len(steps) > 1:
            return _Go(
                error=f"the ranks save different steps ({', '.join(map(str, sorted(steps)))}): call save at the same step on every rank"
            )
        name = "" if save.only_plan else self.folder.claim(save.step)
        return _Go(name=name, replan=not all(same for _, same, _ in begins))

    def _replan(self, save: Save, notes: Notes, planner: StatePlanner, local: Any) -> None:
        """DCP's planning over all ranks, and this rank's part of it."""
        self._digest = ""
        self._say(save, notes, "plan", ("", layouts.dumped(local)))
        if self.ranks.rank == 0:
            told = notes.take_all(self.ranks.keys(f"{save.number}/plan"), self.timeout)
            plans, self._metadata = layouts.global_plans(planner, [layouts.loaded(_sound(data, error)) for error, data in told])
            self._say(save, notes, "parts", ("", [layouts.dumped(plan) for plan in plans]), to_all=True)
        error, parts = notes.take(f"{save.number}/parts", self.timeout)
        self._plan = planner.finish_plan(layouts.loaded(_sound(parts, error)[self.ranks.rank]))
        layout = layouts.layout(planner, self._plan)
        if self._stage is not None:
            self._stage.close()
        self._stage = staging.Stage(layout)
        self._stage.prepare()
        self.writer.share(self._stage.image, self.timeout)

    def _say(self, save: Save, notes: Notes, what: str, value: Any, *, to_all: bool = False) -> None:
        save.said.add(what)
        notes.put(f"{save.number}/{what}" if to_all else f"{save.number}/{what}/{self.ranks.rank}", value)

    # ---- the end of a save

    def _end(self, save: Save, notes: Notes, entries: dict[str, FileEntry], results: list[Any]) -> None:
        """Let the checkpoint exist if all went well everywhere; tell every rank."""
        if "begin" not in save.said:
            self._say(save, notes, "begin", (save.step, False, save.error))
        if "go" not in save.said and self.ranks.rank == 0:
            self._say(save, notes, "go", _Go(error=save.error or "rank 0 failed"), to_all=True)
        if save.error and "plan" not in save.said:
            self._say(save, notes, "plan", (save.error, b""))
        if save.error and "parts" not in save.said and self.ranks.rank == 0:
            self._say(save, notes, "parts", (save.error, []), to_all=True)
        self._say(save, notes, "done", (entries, results, save.error))
        if self.ranks.rank == 0:
            save.error = self._committed_or_not(save, notes)
            self._say(save, notes, "end", save.error, to_all=True)
            self._forget(save.number - 1, notes)
        else:
            save.error = notes.take(f"{save.number}/end", self.timeout)
        self._say(save, notes, "ack", None)

    def _committed_or_not(self, save: Save, notes: Notes) -> str:
        """Rank 0: what went wrong, or '' once the checkpoint exists."""
        try:
            done = notes.take_all(self.ranks.keys(f"{save.number}/done"), self.timeout)
            failed = next((self._of_rank(rank, error) for rank, (_, _, error) in enumerate(done) if error), "")
            if failed:
                raise CheckpointSaveError(failed)
            if save.only_plan:
                return ""
            self._commit(save, [entries for entries, _, _ in done], [results for _, results, _ in done])
        except (EttrainError, OSError) as error:
            self._discard(save)
            return str(error)
        self._committed(save)
        return ""

    def _of_rank(self, rank: int, error: str) -> str:
        return error if self.ranks.world == 1 or error.startswith("rank ") else f"rank {rank}: {error}"

    def _commit(self, save: Save, entries: list[dict[str, FileEntry]], results: list[list[Any]]) -> None:
        data = layouts.metadata_file(self._metadata, results)
        order = Order(
            folder=self._where(save.name), remote="" if self.folder.local else self.folder.address, blobs={layouts.METADATA: data}
        )
        files = self.writer.write(order, None, self.timeout)
        for of_rank in entries:
            files |= of_rank
        now = clock.monotonic_ns()
        wall, then = clock.wall_pair()
        manifest = Manifest(
            step=save.step,
            created_ns=wall - (then - save.begun_ns),
            world=self.ranks.world,
            files=files,
            versions={"torch": torch.__version__, "ettrain": __version__, "python": sys.version.split()[0]},
            seconds={
                "blocking": save.blocking_ns / 1e9,
                "staging": (save.staged_ns - save.begun_ns) / 1e9,
                "write": (now - save.staged_ns) / 1e9,
            },
            **self._who,
            **save.about,
        )
        self.folder.commit(save.name, manifest)
        self.folder.vouch(save.name)

    def _discard(self, save: Save) -> None:
        """Leave nothing of a save that failed; what cannot be removed now goes with the next retention."""
        if not save.name:
            return
        with contextlib.suppress(EttrainError, OSError):
            self.folder.discard(save.name)

    def _forget(self, number: int, notes: Notes) -> None:
        """Throw the notes of a save away that every rank is done with."""
        if number < 1:
            return
        names = ("begin", "plan", "done", "ack")
        notes.forget(
            [f"{number}/go", f"{number}/parts", f"{number}/end", *(key for name in names for key in self.ranks.keys(f"{number}/{name}"))]
        )

    def wait_for_others(self) -> None:
        """Rank 0 keeps the notes: it stays until the others know how the last save ended, for a few seconds at most."""
        save = self._last
        if save is not None and self.ranks.rank == 0 and self.ranks.world > 1 and save.ended.is_set():
            with contextlib.suppress(CheckpointSaveError):
                self.ranks.background.take_all(self.ranks.keys(f"{save.number}/ack"), _ACK_S)


def _sound(value: Any, error: str) -> Any:
    if error:
        raise CheckpointSaveError(error)
    return value

"""`ett.Checkpointer`: checkpoints that do not block, verified, at the right interval, with the place in the data."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import io
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, Self

import torch
from torch import nn

from ettrain import clock
from ettrain.boost import generators
from ettrain.boost.checkpoint import marks, snapshot
from ettrain.boost.checkpoint.agreement import Agreement, Word
from ettrain.boost.checkpoint.experience import expected_failures, record_interval
from ettrain.boost.checkpoint.folder import CheckpointFolder
from ettrain.boost.checkpoint.interval import Interval
from ettrain.boost.checkpoint.layout import check_torch
from ettrain.boost.checkpoint.place import Place
from ettrain.boost.checkpoint.ranks import Ranks
from ettrain.boost.checkpoint.restore import Restore, Restored, described
from ettrain.boost.checkpoint.saver import Save, Saver
from ettrain.boost.checkpoint.state import TrainState
from ettrain.boost.checkpoint.stops import Stops
from ettrain.boost.feed import Feed, follow
from ettrain.errors import CheckpointSaveError, UsageError
from ettrain.record.api import step as count_step
from ettrain.record.rank import attempt_folder

TIMEOUT_S: Final = 600.0
_AFTER_FAILURE_S: Final = 30.0


class Checkpointer:
    """Saves a training in the background and goes on from it exactly where it was.

        ckpt = ett.Checkpointer("checkpoints", model=model, optimizer=optimizer, loader=loader)
        step = ckpt.restore()
        for step, batch in ckpt.steps(start=step):
            ...
        ckpt.close()

    All ranks make one and call the same methods at the same steps. A save takes what the optimizer does not change at once; the rest
    is copied during the next forward and backward, for which the optimizer's step waits; a process of its own writes it. The
    checkpoint exists once every rank's part is on the disk and rank 0 has written the manifest.

    Args:
        folder: where the checkpoints go: a folder that all ranks see, or an fsspec address. One job's own.
        model: the module that is trained, wrapped or not.
        optimizer: the optimizer, or several.
        loader: the training's loader: its position becomes part of the checkpoint.
        every: "auto" = by what a save costs and how often jobs fail; a number of steps; a time such as "300s"; None = only when
            `save` is called.
        keep: checkpoints that stay, at least 1; the newest ones that verify.
        seed: of an order that all ranks share, for a loader that shuffles without a DistributedSampler; its data are split over the ranks.
        split: on several ranks, for a loader without one: True, its dataset is all the data; False, it is this rank's own part.
        timeout: seconds after which a rank gives up waiting for another, or for the disk.
        time_limit: when the job's hardware is taken away, as seconds from now; None = as the scheduler says, if it does.
        **stateful: further objects with `state_dict` and `load_state_dict`: schedulers, scalers, averages.

    Raises:
        UsageError: another job saves there, or something cannot be saved or followed: what, and what to do.
        CheckpointSaveError: the ranks cannot reach one another.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        model: nn.Module | None = None,
        optimizer: Any = (),
        loader: Iterable[Any] | None = None,
        every: int | str | None = "auto",
        keep: int = 2,
        seed: int | None = None,
        split: bool | None = None,
        timeout: float = TIMEOUT_S,
        time_limit: float | None = None,
        **stateful: Any,
    ) -> None:
        if keep < 1:
            raise UsageError(f"ett.Checkpointer(keep={keep}): at least one checkpoint must stay.")
        with marks.apart():  # it tries a save in memory
            check_torch()
        self._interval = Interval.parse(every)
        self._optimizers = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
        self._training = TrainState(model, self._optimizers, stateful)
        self._folder = CheckpointFolder(folder)
        self._keep, self._seed, self._split, self._timeout = keep, seed, split, timeout
        self._ranks = Ranks.meet()
        self._interval.expect(expected_failures(self._ranks.world))
        self._owner = self._owned()
        self._saver = Saver(self._folder, self._ranks, timeout=timeout, who=_who(), committed=self._prune)
        self._agreement = Agreement(self._ranks, timeout)
        self._stops = Stops(time_limit=time_limit)
        self._stops.agrees = True
        self._loader = loader
        self._feed: Feed[Any] | None = None if loader is None else self._followed(loader)
        self._place = Place(self._training.names)
        self._under_way: deque[Save] = deque()
        self._note: threading.Thread | None = None
        self._prepared = self._closed = False
        self._step = self._saved_step = 0
        self.metrics: dict[str, float] = {}
        """Numbers that the next manifest shows, e.g. the loss."""
        self.restored_from = ""
        """Name of the checkpoint gone on from; '' = none."""
        self.last_error = ""
        """Why the last save failed; '' if it did not."""
        self._hooks = [one.register_step_pre_hook(self._before_step) for one in self._training.plain]
        self._pid = os.getpid()
        _alive.add(self)

    # ---- going on

    def restore(self, name: str | None = None) -> int:
        """Go on from the newest checkpoint that verifies, and say on standard error which it is and why others were passed over.

        A checkpoint made with another number of ranks is read as well: its tensors are distributed anew, its data go on without a gap.

        Args:
            name: of the one to go on from, e.g. "step-00000120"; None = the newest.

        Returns:
            Steps done: 0 where there is no checkpoint.

        Raises:
            CheckpointInvalidError: it is another training's; or the one named is damaged.
            UsageError: the data cannot go on from it, and why.
        """
        restore = Restore(self._folder, self._ranks, self._training, timeout=self._timeout)
        with marks.blocked("checkpoint_load") as told:
            restored = restore.newest() if name is None else restore.named(name)
            told.update({"step": 0, "id": marks.identity(self._folder.path(restored.name))} if restored.name else {"err": "none"})
        self._tell(*described(restored, self._folder.address))
        self._take_over(restored)
        if self._ranks.rank == 0:
            self._folder.continue_from(restored.name)
        self.restored_from = restored.name
        self._step = self._saved_step = restored.step
        if restored.manifest is not None:
            taken = restored.manifest.seconds
            self._interval.learned(taken.get("blocking", 0.0), taken.get("staging", 0.0) + taken.get("write", 0.0))
        self._interval.begin(restored.step, clock.monotonic_ns())
        self._tell_interval()
        return restored.step

    def _take_over(self, restored: Restored) -> None:
        """The place in the data and the random generators, which are put back right before the first batch is handed out."""
        if restored.manifest is None:
            return
        if self._ranks.rank == 0:
            self._folder.vouch(restored.name)
        states = None
        if restored.manifest.world == self._ranks.world:
            states = restored.extras[self._ranks.rank]["random"]
        else:
            self._tell(f"{restored.manifest.world} ranks saved and {self._ranks.world} go on: their random generators start anew")
        put_back = functools.partial(generators.put_back, generators.from_plain(states)) if states is not None else None
        if self._feed is not None:
            positions = [extra["data"] for extra in restored.extras]
            if any(position is None for position in positions):
                raise UsageError(
                    f"{restored.name} holds no place in the data: it was saved without loader=. Restore without one, or start anew."
                )
            self._feed.load(positions, at_resume=put_back)
        elif put_back is not None:
            put_back()

    # ---- the loop

    @property
    def step(self) -> int:
        """Optimizer steps done, in all attempts."""
        return self._step

    @property
    def epoch(self) -> int:
        """Passes over the loader that are done."""
        return 0 if self._feed is None else int(self._feed.epoch)

    def steps(self, loader: Iterable[Any] | None = None, start: int | None = None) -> Iterator[tuple[int, Any]]:
        """The rest of this epoch, from where the data stand; saves by itself between two steps.

        Args:
            loader: the one given to the constructor; or, where none was, the training's.
            start: global index of the first step; None = as restored or reached.

        Yields:
            (global step index from 0, batch).

        Raises:
            UsageError: the loader is another one, or cannot be followed.
        """
        feed, place = self._feed_of(loader), self._place
        index = self._step if start is None else start
        self._step = index
        place.between_steps(feed)
        try:
            for batch in feed:
                place.batch_out = True
                yield index, batch
                place.batch_out = False
                count_step(index)
                index += 1
                self.stepped(index)
                place.between_steps(feed)
        finally:  # left by break: the batch given out was trained, or it was not
            if place.trained_more():
                place.batch_out = False
                count_step(index)
                self._step = index + 1

    def _feed_of(self, loader: Iterable[Any] | None) -> Feed[Any]:
        if self._feed is None:
            if loader is None:
                raise UsageError("ckpt.steps(): no loader was given, here or to ett.Checkpointer(loader=...).")
            self._loader, self._feed = loader, self._followed(loader)
        elif loader is not None and loader is not self._loader:
            raise UsageError("ckpt.steps(loader): another loader than the one that this Checkpointer follows. Give that one, or none.")
        return self._feed

    def _followed(self, loader: Iterable[Any]) -> Feed[Any]:
        return follow(loader, rank=self._ranks.rank, world=self._ranks.world, seed=self._seed, split=self._split)

    def stepped(self, step: int) -> None:
        """Say that `step` steps are done, where the loop is the program's own: saves if it is due. `steps` calls it by itself.

        A save that fails is told on standard error and tried again; the training goes on.
        """
        before, self._step = self._step, step
        self._look_after()
        if self._closed:
            return
        if not self._prepared:
            self._prepare(step)
        try:
            word = self._word(before, step)
        except CheckpointSaveError as error:
            self._failed(f"no more saves: {error}")
            self._release()
            return
        if word.stop:
            self._stop(step)
        elif word.save:
            self.save(step)

    def _word(self, before: int, step: int) -> Word:
        """Whether to save or stop now; the same on every rank."""
        now, interval = clock.monotonic_ns(), self._interval
        if not interval.steps:
            return self._agreement.word(step, now, due=lambda: not self.saving and interval.due(step, now), stop=self._stops.asked())
        word = self._agreement.word(step, now, due=lambda: False, stop=self._stops.asked())
        return dataclasses.replace(word, save=step // interval.steps > before // interval.steps)

    @property
    def saving(self) -> bool:
        """Whether a save is under way."""
        return any(not save.ended.is_set() for save in self._under_way)

    def _prepare(self, step: int) -> None:
        """Plan, share the memory and start the writer after the first step, so that the first save is like the others."""
        self._prepared = True
        with marks.blocked("checkpoint_save", part="ett.Checkpointer: prepare"):
            save = self._begun(step, only_plan=True)
            save.staged.set()

    # ---- saving

    def save(self, step: int | None = None, *, wait: bool = False) -> None:
        """Save now, between two steps; returns while the state is copied and written.

        Args:
            step: steps done; None = as reached, the one of the batch that is out included if its optimizer has stepped.
            wait: until the checkpoint exists.

        Raises:
            CheckpointSaveError: with `wait`, that it failed, and why.
        """
        if step is None:
            step = self._step + self._place.trained_more()
        if self._closed:
            self._failed("not saved: this Checkpointer is closed")
            return
        details = marks.numbered()
        begun = clock.monotonic_ns()
        with marks.blocked("checkpoint_save", **details) as told:
            told["id"] = {}
            self._look_after()
            save = self._begun(step)
            if save.holds_up or self._saver.holds_up:
                save.staged.wait()
            save.blocking_ns = clock.monotonic_ns() - begun
        self._interval.began(step, begun)
        self._note = threading.Thread(target=self._note_end, args=(save, details.get("save", 0)), daemon=True, name="ettrain note")
        self._note.start()
        if wait:
            self.wait()

    def _begun(self, step: int, *, only_plan: bool = False) -> Save:
        """A save that is under way. What the program's own objects raise fails it, on all ranks."""
        try:
            taken = snapshot.take(self._training)
            more = {} if only_plan else {"extra": self._extra(), "about": self._about()}
            save = self._saver.begin(step, taken, only_plan=only_plan, **more)
            save.holds_up = bool(taken.must_wait)
        except Exception as error:  # noqa: BLE001 - state_dict of the program's objects; the training goes on
            save = self._saver.begin(step, None, only_plan=only_plan, error=f"{type(error).__name__}: {error}")
        self._under_way.append(save)
        return save

    def _note_end(self, save: Save, number: int) -> None:
        """Tell the journal when it is durable."""
        save.ended.wait()
        if number:
            marks.committed(number, save.begun_ns, self._folder.path(save.name) if save.ok else "")

    def wait(self) -> None:
        """Until no save is under way.

        Raises:
            CheckpointSaveError: the last save failed, and why.
        """
        with marks.blocked("checkpoint_save", part="ett.Checkpointer: wait"):
            self._await()
        self._look_after()
        if self.last_error:
            raise CheckpointSaveError(self.last_error)

    def close(self) -> None:
        """Save what is not saved yet, wait for it, and end the writer process. Call it at the end of the training.

        Raises:
            CheckpointSaveError: the last save failed, and why.
        """
        if self._closed:
            return
        try:
            self._await()
            self._look_after()
            if self._step > self._saved_step:
                self.save(self._step)
            self.wait()
        finally:
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close; where the training failed, only finish the save that is under way."""
        if kind is None:
            self.close()
        else:
            self._at_exit(failed=True)

    def _await(self, seconds: float | None = None) -> None:
        """Until none is under way, or so long; each is bounded by itself."""
        deadline = None if seconds is None else clock.monotonic_ns() + int(seconds * 1e9)
        for save in self._under_way:
            save.ended.wait(None if deadline is None else max(0.0, (deadline - clock.monotonic_ns()) / 1e9))

    def _look_after(self) -> None:
        """Learn from the saves that have ended."""
        while self._under_way and self._under_way[0].ended.is_set():
            self._learn(self._under_way.popleft())

    def _learn(self, save: Save) -> None:
        if save.error:
            self._saver.holds_up = self._saver.holds_up or save.torn
            self._failed(f"step {save.step} was not saved: {save.error} (the checkpoint before it is untouched; training goes on)")
            if not save.only_plan:
                self._interval.failed(clock.monotonic_ns())
        elif not save.only_plan:
            self.last_error = ""
            self._saved_step = save.step
            self._stops.takes_s = (save.ended_ns - save.begun_ns) / 1e9
            self._interval.saved(save.step, save.blocking_ns, save.ended_ns - save.begun_ns, clock.monotonic_ns())
            self._tell_interval()

    def _tell_interval(self) -> None:
        """For `ett watch`; rank 0 decides, so it tells."""
        if self._ranks.rank == 0:
            record_interval(self._interval)

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer is about to change what is being copied: wait until it is copied."""
        if torch.compiler.is_compiling():
            return
        self._place.optimized = True
        waits = [save for save in self._under_way if not save.staged.is_set()]
        if not waits:
            return
        begun = clock.monotonic_ns()
        with marks.blocked("checkpoint_save", part="ett.Checkpointer: staging"):
            for save in waits:
                save.staged.wait()
        waits[-1].blocking_ns += clock.monotonic_ns() - begun

    def _extra(self) -> bytes:
        """The content of this rank's own file."""
        buffer = io.BytesIO()
        torch.save(self._place.now(self._feed), buffer)
        return buffer.getvalue()

    def _about(self) -> Mapping[str, Any]:
        return {"position": self._place.summary(self._feed), "metrics": dict(self.metrics)}

    def _prune(self, save: Save) -> None:
        """On rank 0, once a checkpoint exists."""
        self._folder.prune(self._keep, spare=(save.name,))

    # ---- the end

    def _stop(self, step: int) -> None:
        """The job is about to be stopped: save in the time that is left, and end as it would have ended."""
        self._tell(f"{self._stops.why() or 'another rank is to stop'}: saving step {step}")
        with contextlib.suppress(CheckpointSaveError):  # told already; the checkpoint before it stays
            self.save(step)
            while self._under_way and not (self._under_way[-1].name or self._under_way[-1].ended.is_set()):
                clock.sleep_s(0.005)  # until every rank takes part: where one is gone, the signal ends this process soon
            self._stops.agreed()
            self.wait()
        with marks.blocked("checkpoint_save", part="ett.Checkpointer: stop"):
            self._release()
            self._stops.end()

    def _owned(self) -> Any:
        """Rank 0 takes the folder; all ranks raise where it cannot."""
        owner, why = None, ""
        notes = self._ranks.main
        if self._ranks.rank == 0:
            try:
                owner = self._folder.own(_who())
            except UsageError as error:
                why = str(error)
            notes.put("own", why)
        why = why or notes.take("own", self._timeout)
        if why:
            raise UsageError(why)
        return owner

    def _release(self) -> None:
        self._closed = True
        self._saver.wait_for_others()
        for hook in self._hooks:
            hook.remove()
        self._saver.close()
        if self._note is not None:
            self._note.join(1.0)
        self._stops.forget()
        if self._owner is not None:
            self._owner.release()

    def _at_exit(self, *, failed: bool) -> None:
        """The program ends without `close`: the save under way is finished. After a failure other ranks may be gone, and are not waited for long."""
        if self._closed or self._pid != os.getpid():
            return
        self._await(_AFTER_FAILURE_S if failed and self._ranks.world > 1 else None)
        self._look_after()
        self._release()

    def _failed(self, why: str) -> None:
        self.last_error = why
        sys.stderr.write(f"ettrain: checkpoint: rank {self._ranks.rank}: {why}\n")

    def _tell(self, *lines: str) -> None:
        if self._ranks.rank == 0:
            for line in lines:
                sys.stderr.write(f"ettrain: checkpoint: {line}\n")


_alive: weakref.WeakSet[Checkpointer] = weakref.WeakSet()


def _finish_all() -> None:
    for one in list(_alive):
        one._at_exit(failed=hasattr(sys, "last_type"))


atexit.register(_finish_all)


def _who() -> dict[str, Any]:
    """The job and attempt under `ett run`."""
    folder = attempt_folder()
    if folder is None:
        return {}
    return {"job": folder.parent.parent.name, "attempt": int(folder.name.partition("-")[0]) if folder.name[:1].isdecimal() else 0}

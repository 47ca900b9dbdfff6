"""Waiting for data. A pass over a loader is a `Loop`: once a backward falls into it, it trains; one that ends without is an evaluation."""

from __future__ import annotations

from _thread import get_ident
from typing import Any, Final

from ettrain.events import B_ACTIVE_T
from ettrain.record.guard import guard
from ettrain.record.hooks import private
from ettrain.record.hooks.evaluation import evaluation
from ettrain.record.hooks.wrap import nesting, wraps
from ettrain.record.recorder import now, recorder

MAX_UNDECIDED: Final = 16
"""Loops that wait for a backward; a program that never calls one has no more than these."""
MAX_UNDECIDED_WAITS: Final = 64


class Loop:
    """One pass over one loader."""

    __slots__ = ("batches", "begin", "lost", "open", "trains", "waits")

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self.lost = recorder.lost_ns
        """The recorder's `lost_ns` at the begin."""
        self.batches = 0
        self.trains = False
        self.open = True
        self.waits = [(begin, now())]
        """Waits so far, that of `iter(loader)` first, as long as nobody knows what the loop is for."""


class Loops:
    """The loops under way whose purpose is not known yet."""

    __slots__ = ("undecided",)

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """As new, in a forked child."""
        self.undecided: list[Loop] = []

    def delivered(self, loop: Loop, begin: int) -> None:
        """A loop delivered a batch after waiting since `begin`."""
        if recorder.paused:
            return
        end = now()
        recorder.beat[B_ACTIVE_T] = end
        rule = recorder.rule
        rule.batches += 1
        rule.activity += 1
        loop.batches += 1
        if loop.trains:
            recorder.waited(begin, end)
            return
        if len(loop.waits) < MAX_UNDECIDED_WAITS:
            loop.waits.append((begin, end))
        if loop.batches == 1:
            self._begun(loop)

    def _begun(self, loop: Loop) -> None:
        """It is the first batch: what earlier undecided loops were for is now known, unless they wait for this one too."""
        for other in self.undecided[:]:
            if other.batches > 1:
                self.ended(other, loop.begin)
        self.undecided.append(loop)
        if len(self.undecided) > MAX_UNDECIDED:
            self.ended(self.undecided[0], loop.begin)

    def trained(self) -> None:
        """A backward, or an optimizer's step: all undecided loops that delivered feed the training."""
        first = recorder.steps == 0
        for loop in self.undecided:
            loop.trains = True
            for index, (begin, end) in enumerate(loop.waits):
                if first and index < 2:
                    recorder.span("get_first_batch_data", begin, end)
                else:
                    recorder.waited(begin, end)
            loop.waits.clear()
        self.undecided.clear()

    def ended(self, loop: Loop, end: int) -> None:
        """A loop is over; without a backward it was an evaluation, or before any forward a pass of the preprocessing."""
        if not loop.open:
            return
        loop.open = False
        if loop in self.undecided:
            self.undecided.remove(loop)
        if loop.batches and not loop.trains:
            evaluation.loop_over(loop.begin, end, loop.lost)

    def all_ended(self) -> None:
        """The process ends."""
        for loop in self.undecided[:]:
            self.ended(loop, now())


loops = Loops()
recorder.at_fork.append(loops.reset)
recorder.at_finish.append(loops.all_ended)


def on_dataloader(module: Any) -> None:
    """torch's own loader."""
    if private(module) is not None:
        _hook_next(module._BaseDataLoaderIter)
        _hook_iter(module.DataLoader)


def on_stateful_dataloader(module: Any) -> None:
    """torchdata's loader has an `__iter__` and iterators of its own."""
    iterator = getattr(module, "_StatefulBaseDataLoaderIter", None)
    if iterator is not None and "__next__" in vars(iterator):
        _hook_next(iterator)
    _hook_iter(module.StatefulDataLoader)


def _hook_iter(cls: Any) -> None:
    run = cls.__iter__

    @wraps(run)
    def __iter__(self: Any) -> Any:  # noqa: N807 - the method it wraps
        if recorder.off or get_ident() != recorder.main:
            return run(self)
        begin = now()
        iterator = run(self)
        try:
            iterator._ett_loop = Loop(begin)
        except Exception as error:  # noqa: BLE001 - the guard's rule
            guard.fault("loader", error)
        return iterator

    cls.__iter__ = __iter__


def _hook_next(cls: Any) -> None:
    run = cls.__next__

    @wraps(run)
    def __next__(self: Any) -> Any:  # noqa: N807 - the method it wraps
        if nesting.depth:
            return run(self)
        loop = getattr(self, "_ett_loop", None) if get_ident() == recorder.main else None
        begin = now()
        nesting.depth = 1
        try:
            batch = run(self)
        except BaseException:
            if loop is not None:
                _over(loop, begin)
            raise
        finally:
            nesting.depth = 0
        if loop is not None:
            try:
                loops.delivered(loop, begin)
            except Exception as error:  # noqa: BLE001 - the guard's rule
                guard.fault("batch", error)
        return batch

    cls.__next__ = __next__


def taken_elsewhere(iterator: Any, begin: int) -> None:
    """The program gets a batch that another thread had taken from `iterator`; it waited for it since `begin`."""
    if get_ident() != recorder.main:
        return
    loop = getattr(iterator, "_ett_loop", None)
    if loop is None:
        recorder.rule.batches += 1
        recorder.rule.activity += 1
        recorder.span("get_first_batch_data", begin, now())
        return
    loop.begin, loop.lost = begin, recorder.lost_ns  # its pass begins now; `iter` was called ahead
    loops.delivered(loop, begin)


def _over(loop: Loop, begin: int) -> None:
    try:
        end = now()
        if loop.trains:
            recorder.waited(begin, end)
        loops.ended(loop, end)
    except Exception as error:  # noqa: BLE001 - the guard's rule
        guard.fault("end of a loader", error)

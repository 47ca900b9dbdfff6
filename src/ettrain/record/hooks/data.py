"""Waiting for data. A pass over a loader is a `Loop`: once a backward falls into it, it trains; one that ends without is an evaluation."""

from __future__ import annotations

import _thread
import functools
from types import ModuleType
from typing import Any

from ettrain.record.guard import guard
from ettrain.record.hooks import private
from ettrain.record.hooks.wrap import Waiting
from ettrain.record.recorder import now, recorder


class Loop:
    """One pass over one loader."""

    __slots__ = ("batches", "begin", "open", "trains", "waits")

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self.batches = 0
        self.trains = False
        self.open = True
        self.waits: list[tuple[int, int]] = []
        """Waits so far, as long as nobody knows what the loop is for."""


class Loops:
    """The loops under way."""

    __slots__ = ("undecided",)

    def __init__(self) -> None:
        self.undecided: list[Loop] = []

    def begun(self, loop: Loop) -> None:
        """A loop delivered its first batch: what earlier undecided loops were for is now known, unless they wait for this one too."""
        for other in list(self.undecided):
            if other.batches > 1:
                self.ended(other, loop.begin)
        self.undecided.append(loop)

    def trained(self) -> None:
        """A backward: all undecided loops that delivered feed the training."""
        for loop in self.undecided:
            loop.trains = True
            for index, (begin, end) in enumerate(loop.waits):
                if index == 0 and recorder.steps == 0:
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
        if loop.trains or not loop.batches:
            return
        recorder.loop_without_training(loop.begin, end)

    def all_ended(self) -> None:
        """The process ends."""
        for loop in list(self.undecided):
            self.ended(loop, now())


loops = Loops()


def on_dataloader(module: ModuleType) -> None:
    """torch's own loader."""
    _hook_iter(module.DataLoader)
    if private(module, "_BaseDataLoaderIter.__next__") is not None:
        _hook_next(module._BaseDataLoaderIter)
    recorder.at_finish.append(loops.all_ended)


def on_stateful_dataloader(module: ModuleType) -> None:
    """torchdata's loader has an `__iter__` and iterators of its own."""
    _hook_iter(module.StatefulDataLoader)
    base = getattr(module, "_BaseDataLoaderIter", None)
    for cls in (base, getattr(module, "_StatefulBaseDataLoaderIter", None)):
        if cls is not None and "__next__" in vars(cls) and not hasattr(vars(cls)["__next__"], "__wrapped__"):
            _hook_next(cls)


def _hook_iter(cls: Any) -> None:
    run = cls.__iter__

    @functools.wraps(run)
    def __iter__(self: Any) -> Any:
        begin = now()
        iterator = run(self)
        try:
            if not recorder.off:
                iterator._ett_loop = Loop(begin)
        except Exception as error:  # noqa: BLE001 - the guard's rule
            guard.fault("loader", error)
        return iterator

    cls.__iter__ = __iter__


def _hook_next(cls: Any) -> None:
    run = cls.__next__
    main = _thread.get_ident()

    @functools.wraps(run)
    def __next__(self: Any) -> Any:
        loop = getattr(self, "_ett_loop", None)
        if loop is None or recorder.off or _thread.get_ident() != main:
            return run(self)
        begin = now()
        Waiting.inside = True
        try:
            batch = run(self)
        except BaseException:
            Waiting.inside = False
            _over(loop, begin)
            raise
        Waiting.inside = False
        try:
            _delivered(loop, begin)
        except Exception as error:  # noqa: BLE001 - the guard's rule
            guard.fault("batch", error)
        return batch

    cls.__next__ = __next__


def _delivered(loop: Loop, begin: int) -> None:
    end = now()
    rule = recorder.rule
    rule.batches += 1
    rule.activity += 1
    loop.batches += 1
    if loop.trains:
        recorder.waited(begin, end)
    elif loop.batches == 1:
        loop.waits.append((loop.begin, end))
        loops.begun(loop)
    elif len(loop.waits) < 64:
        loop.waits.append((begin, end))


def _over(loop: Loop, begin: int) -> None:
    try:
        if loop.trains:
            recorder.waited(begin, now())
        loops.ended(loop, now())
    except Exception as error:  # noqa: BLE001 - the guard's rule
        guard.fault("end of a loader", error)

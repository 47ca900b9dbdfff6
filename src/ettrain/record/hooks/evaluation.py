"""Evaluation: a pass over a loader without a backward, or a module put in evaluation mode and back with no backward between.

Frozen layers and teacher models are put in evaluation mode too; the next backward tells that it was no evaluation.
"""

from __future__ import annotations

import weakref
from typing import Any, Final

from ettrain.events import B_EVAL_T, B_STEP_T
from ettrain.record.guard import guard
from ettrain.record.hooks.wrap import wraps
from ettrain.record.recorder import now, recorder

MAX_MODULES: Final = 256


class Evaluation:
    """The modules in evaluation mode since the last backward."""

    __slots__ = ("modules", "seen_forward")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """As new, in a forked child."""
        self.modules: dict[int, tuple[weakref.ref[Any], int, int]] = {}
        """Identity -> the module, since when, and the recorder's `lost_ns` then."""
        self.seen_forward = False
        """Before the first forward nothing is evaluated: models are being built."""

    def mode_set(self, module: Any, *, training: bool) -> None:
        """The program put a module in training or evaluation mode."""
        if recorder.paused:
            return
        if training:
            if self.modules:
                self._end()
        elif id(module) not in self.modules and len(self.modules) < MAX_MODULES:
            begin = now()
            if not self.modules:
                recorder.beat[B_EVAL_T] = begin if self.seen_forward else 0
            self.modules[id(module)] = weakref.ref(module), begin, recorder.lost_ns

    def _end(self) -> None:
        """Some module is back in training mode: if it is one of ours, or contains it, an evaluation is over."""
        end = now()
        over = [entry for entry in self.modules.values() if (module := entry[0]()) is not None and module.training]
        if not over:
            return
        self.modules = {key: entry for key, entry in self.modules.items() if entry not in over}
        _, begin, lost = min(over, key=lambda entry: entry[1])
        if self.seen_forward:
            recorder.span("evaluation", begin, end, lost_then=lost)
        still = min((entry[1] for entry in self.modules.values()), default=0)
        recorder.beat[B_EVAL_T] = still if self.seen_forward else 0

    def discard(self) -> None:
        """A backward: what is in evaluation mode now is so while training."""
        self.modules.clear()
        recorder.beat[B_EVAL_T] = 0

    def first_forward(self) -> None:
        """From now on there is something to evaluate."""
        self.seen_forward = True

    def loop_over(self, begin: int, end: int, lost: int) -> None:
        """A pass over a loader saw no backward."""
        recorder.span("evaluation" if self.seen_forward else "preproc_creation", begin, end, lost_then=lost)

    def process_ends(self) -> None:
        """A program may end in evaluation mode."""
        begin = recorder.beat[B_EVAL_T]
        if begin > recorder.beat[B_STEP_T]:
            self.discard()
            recorder.span("evaluation", begin, now())


evaluation = Evaluation()
recorder.at_fork.append(evaluation.reset)
recorder.at_finish.append(evaluation.process_ends)


def on_module(module: Any) -> None:
    """Watch `Module.train(mode)`, which `Module.eval()` calls as well; only the outermost call, not those for its children."""
    set_mode = module.Module.train
    busy = False

    @wraps(set_mode)
    def train(self: Any, mode: bool = True) -> Any:  # noqa: FBT001, FBT002 - torch's signature
        nonlocal busy
        if busy or recorder.off:
            return set_mode(self, mode)
        busy = True
        try:
            return set_mode(self, mode)
        finally:
            busy = False
            try:
                evaluation.mode_set(self, training=bool(mode))
            except Exception as error:  # noqa: BLE001 - the guard's rule
                guard.fault("evaluation", error)

    train._torchdynamo_inline = set_mode  # type: ignore[attr-defined]  # torch.compile looks through us
    module.Module.train = train

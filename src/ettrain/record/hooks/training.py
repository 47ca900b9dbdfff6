"""Steps, backward passes, the first forward: what makes a process a trainer."""

from __future__ import annotations

import os
import sys
import weakref
from typing import Any, Final

from ettrain.record.guard import guard
from ettrain.record.hooks.data import loops
from ettrain.record.hooks.evaluation import evaluation
from ettrain.record.hooks.wrap import wraps
from ettrain.record.rank import is_child, rank_of_environment
from ettrain.record.recorder import now, recorder

_LAUNCHERS: Final = ("torchrun", "accelerate", "deepspeed", "torch.distributed.run", "torch.distributed.launch", "torch/distributed/run.py")


class FirstForward:
    """The end of set-up: the first call of a module. Seen through torch's public global hook, which is gone again after it."""

    __slots__ = ("handle",)

    def __init__(self) -> None:
        self.handle: Any = None

    def watch(self, torch: Any) -> None:
        """Wait for it."""

        def hook(module: Any, inputs: Any) -> None:
            self.seen(type(module).__name__)

        self.handle = torch.nn.modules.module.register_module_forward_pre_hook(hook)

    def stop(self) -> None:
        """Take the hook out: dynamo would trace it, guard on it, and warn of it."""
        handle, self.handle = self.handle, None
        if handle is not None:
            handle.remove()

    def seen(self, part: str) -> None:
        """It happens now, in a module of that class or a compiled function of that name."""
        self.stop()
        if evaluation.seen_forward or recorder.paused:
            return
        try:
            evaluation.first_forward()
            recorder.mark("first_forward", now(), part=part)
            if not is_child():
                recorder.promote()
        except Exception as error:  # noqa: BLE001 - the guard's rule
            guard.fault("first forward", error)


first_forward = FirstForward()


def on_torch(torch: Any) -> None:
    """torch is imported: watch for the first forward; a process with a rank of its own is a trainer from now on."""
    first_forward.watch(torch)
    if rank_of_environment()[0] is not None and not is_child() and not _is_launcher():
        recorder.promote()
    if os.environ.get("ETT_EXPLAIN_STARTUP") == "1":
        from ettrain.record import startup

        startup.explain(recorder)


def _is_launcher() -> bool:
    """Such a process may inherit a rank without being it."""
    return any(word.endswith(_LAUNCHERS) for word in getattr(sys, "orig_argv", [])[1:4])


def on_optimizer(module: Any) -> None:
    """Every optimizer's step, through torch's public global hook."""
    done = recorder.optimizer_done
    ours = recorder  # at the interpreter's end optimizers outlive this module's globals
    living: dict[int, weakref.ref[Any]] = {}

    def meet(optimizer: Any, key: int) -> None:
        """Another optimizer may get this one's identity once it is gone."""

        def gone(reference: weakref.ref[Any]) -> None:
            ours.rule.seen.pop(key, None)

        living[key] = weakref.ref(optimizer, gone)

    def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
        if recorder.paused:
            return
        try:
            if loops.undecided:
                loops.trained()
            key = id(optimizer)
            if key not in recorder.rule.seen:
                meet(optimizer, key)
            done(key)
        except Exception as error:  # noqa: BLE001 - the guard's rule
            guard.fault("optimizer step", error)

    module.register_optimizer_step_post_hook(stepped)


def on_autograd(module: Any) -> None:
    """Backward passes, and gradients asked for directly. Dynamo is told to skip this file: see `compiling.on_trace_rules`."""
    run_backward, run_grad = module.backward, module.grad
    inside = False

    @wraps(run_backward)
    def backward(*args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        if inside:  # a backward within a backward, as reentrant activation checkpoints make them
            return run_backward(*args, **kwargs)
        inside = True
        try:
            try:
                _begins()
            except Exception as error:  # noqa: BLE001 - the guard's rule
                guard.fault("backward", error)
            result = run_backward(*args, **kwargs)
        finally:
            inside = False
        try:
            recorder.backward_done()
        except Exception as error:  # noqa: BLE001 - the guard's rule
            guard.fault("backward", error)
        return result

    @wraps(run_grad)
    def grad(*args: Any, **kwargs: Any) -> Any:
        if not recorder.paused:
            recorder.rule.activity += 1
        return run_grad(*args, **kwargs)

    module.backward, module.grad = backward, grad


def _begins() -> None:
    """A backward begins."""
    if recorder.paused:
        return
    recorder.rule.activity += 1
    if recorder.backwards == 0:
        recorder.mark("first_backward", now())
        evaluation.first_forward()  # the first forward was not seen where it was compiled ahead of the training
    if loops.undecided:
        loops.trained()
    if evaluation.modules:
        evaluation.discard()


def on_grad_scaler(module: Any) -> None:
    """A scaled step that found infinities and was skipped is no step; it is counted apart."""
    run_step = module.GradScaler.step

    @wraps(run_step)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = recorder.rule.calls
        result = run_step(self, *args, **kwargs)
        try:
            if recorder.rule.calls == before and self.is_enabled():
                recorder.step_skipped()
        except Exception as error:  # noqa: BLE001 - the guard's rule
            guard.fault("skipped step", error)
        return result

    module.GradScaler.step = step


def on_transformers(module: Any) -> None:
    """The HF Trainer's own count of steps."""
    handler = module.CallbackHandler
    run = handler.on_step_end

    @wraps(run)
    def on_step_end(self: Any, args: Any, state: Any, control: Any, *rest: Any, **kwargs: Any) -> Any:
        try:
            recorder.framework_step(int(state.global_step))
        except Exception as error:  # noqa: BLE001 - the guard's rule
            guard.fault("transformers step", error)
        return run(self, args, state, control, *rest, **kwargs)

    handler.on_step_end = on_step_end

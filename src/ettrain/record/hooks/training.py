"""Steps, backward passes, evaluation mode: what makes a process a trainer."""

from __future__ import annotations

import functools
import os
import sys
from types import ModuleType
from typing import Any

from ettrain.record.guard import guard
from ettrain.record.hooks import data
from ettrain.record.recorder import now, rank_of_environment, recorder

_LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "torch.distributed.run", "torch.distributed.launch", "torch/distributed/run.py")


def on_torch(torch: ModuleType) -> None:
    """torch is imported: watch for the first forward; a process with a rank of its own is a trainer from now on."""
    handle = None

    def first_forward(module: Any, inputs: Any) -> None:
        if handle is not None:
            handle.remove()
        try:
            recorder.first_forward_seen = True
            recorder.mark("first_forward", now(), part=type(module).__name__)
            if "multiprocessing.process" not in sys.modules or sys.modules["multiprocessing.process"].parent_process() is None:
                recorder.promote()
        except Exception as error:  # noqa: BLE001 - the guard's rule
            guard.fault("first forward", error)

    handle = torch.nn.modules.module.register_module_forward_pre_hook(first_forward)
    if rank_of_environment()[0] is not None and not _is_helper():
        recorder.promote()
    if os.environ.get("ETT_EXPLAIN_STARTUP") == "1":
        from ettrain.record import startup

        startup.explain(recorder)


def _is_helper() -> bool:
    """A launcher, or a child of multiprocessing: such a process may inherit a rank without being it."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        return True
    words = getattr(sys, "orig_argv", [])[1:4]
    return any(word.endswith(_LAUNCHERS) for word in words)


def on_optimizer(module: ModuleType) -> None:
    """Every optimizer's step, through torch's public global hook."""
    done = recorder.optimizer_done

    def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
        try:
            done(id(optimizer))
        except Exception as error:  # noqa: BLE001 - the guard's rule
            guard.fault("optimizer step", error)

    module.register_optimizer_step_post_hook(stepped)


def on_autograd(module: ModuleType) -> None:
    """Backward passes, and gradients asked for directly. Dynamo is told to skip this file: see `compiling.on_trace_rules`."""
    run_backward, run_grad = module.backward, module.grad
    rule = recorder.rule
    loops = data.loops

    @functools.wraps(run_backward)
    def backward(*args: Any, **kwargs: Any) -> Any:
        nonlocal rule
        try:
            rule = recorder.rule
            rule.activity += 1
            if recorder.backwards == 0:
                recorder.mark("first_backward", now())
            if loops.undecided:
                loops.trained()
            if recorder.eval_module:
                recorder.eval_discarded()
        except Exception as error:  # noqa: BLE001 - the guard's rule
            guard.fault("backward", error)
        result = run_backward(*args, **kwargs)
        try:
            recorder.backward_done()
        except Exception as error:  # noqa: BLE001 - the guard's rule
            guard.fault("backward", error)
        return result

    @functools.wraps(run_grad)
    def grad(*args: Any, **kwargs: Any) -> Any:
        recorder.rule.activity += 1
        return run_grad(*args, **kwargs)

    module.backward, module.grad = backward, grad


def on_module(module: ModuleType) -> None:
    """`Module.eval()` ... `.train()` of the same module, with no backward in between, is an evaluation."""
    set_mode = module.Module.train
    busy = False

    @functools.wraps(set_mode)
    def train(self: Any, mode: bool = True) -> Any:
        nonlocal busy
        if busy or recorder.off:
            return set_mode(self, mode)
        busy = True
        try:
            return set_mode(self, mode)
        finally:
            busy = False
            try:
                recorder.mode_set(id(self), training=bool(mode))
            except Exception as error:  # noqa: BLE001 - the guard's rule
                guard.fault("evaluation", error)

    module.Module.train = train


def on_grad_scaler(module: ModuleType) -> None:
    """A scaled step that found infinities and was skipped is no step; it is counted apart."""
    run_step = module.GradScaler.step

    @functools.wraps(run_step)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = recorder.rule.calls
        result = run_step(self, *args, **kwargs)
        if self.is_enabled() and recorder.rule.calls == before:
            recorder.skipped += 1
        return result

    module.GradScaler.step = step


def on_transformers(module: ModuleType) -> None:
    """The HF Trainer's own count of steps."""
    handler = module.CallbackHandler
    run = handler.on_step_end

    @functools.wraps(run)
    def on_step_end(self: Any, args: Any, state: Any, control: Any, *rest: Any, **kwargs: Any) -> Any:
        try:
            recorder.framework_step(int(state.global_step))
        except Exception as error:  # noqa: BLE001 - the guard's rule
            guard.fault("transformers step", error)
        return run(self, args, state, control, *rest, **kwargs)

    handler.on_step_end = on_step_end

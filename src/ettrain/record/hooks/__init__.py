"""Where torch is touched: one function per leaf module, called by the boot module right after that module was executed.

Public hooks are used where torch has them; a private name stands in `PRIVATE`, and where it is missing the stage is
"not measured", which the journal says. A hook that fails to install is a counted fault and switches off only itself.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from types import ModuleType
from typing import Any, Final

from ettrain import clock
from ettrain.record import exits
from ettrain.record.guard import guard
from ettrain.record.recorder import recorder

_HOME: Final[dict[str, str]] = {
    "on_torch": "training",
    "on_autograd": "training",
    "on_optimizer": "training",
    "on_module": "evaluation",
    "on_grad_scaler": "training",
    "on_transformers": "training",
    "on_dataloader": "data",
    "on_stateful_dataloader": "data",
    "on_serialization": "checkpoint",
    "on_dcp_save": "checkpoint",
    "on_dcp_load": "checkpoint",
    "on_dcp_process": "checkpoint",
    "on_safetensors": "checkpoint",
    "on_c10d": "parallel",
    "on_distributed_utils": "collectives",
    "on_functional": "collectives",
    "on_ddp": "parallel",
    "on_fully_shard": "parallel",
    "on_fsdp": "parallel",
    "on_torchrec": "parallel",
    "on_cuda": "parallel",
    "on_elastic": "launcher",
    "on_dynamo_callback": "compiling",
    "on_dynamo_utils": "compiling",
    "on_eval_frame": "compiling",
    "on_trace_rules": "compiling",
    "on_pgo": "shapes",
    "on_select_algorithm": "tuning",
    "on_triton_autotuner": "tuning",
}

PRIVATE: Final[dict[str, tuple[str, ...]]] = {
    "torch.utils.data.dataloader": ("_BaseDataLoaderIter.__next__",),
    "torch.cuda": ("_lazy_init",),
    "torch.distributed.distributed_c10d": ("ProcessGroup._get_sequence_number_for_group",),
    "torch.distributed.utils": ("_verify_param_shape_across_processes", "_sync_params_and_buffers"),
    "torch._dynamo.callback": ("callback_handler.start_callbacks", "callback_handler.end_callbacks"),
    "torch._dynamo.utils": ("record_compilation_metrics",),
    "torch._dynamo.eval_frame": ("OptimizedModule.__init__",),
    "torch._dynamo.trace_rules": ("add",),
    "torch._dynamo.pgo": ("get_code_state", "auto_dynamic"),
    "torch.distributed.checkpoint._async_process_executor": ("_AsyncCheckpointProcess._checkpointing_subprocess",),
    "torch.distributed.elastic.multiprocessing.api": ("PContext.wait", "PContext.pids"),
}
"""Every private name of torch that is used; a contract test looks them up in the torch at hand."""


def private(module: ModuleType) -> dict[str, Any] | None:
    """The private objects of a module of torch by name, or None where this torch lacks one: then nothing is measured there."""
    found: dict[str, Any] = {}
    for name in PRIVATE[module.__name__]:
        value: Any = module
        for part in name.split("."):
            value = getattr(value, part, None)
        if value is None:
            recorder.note(f"not measured: this torch has no {module.__name__}.{name}")
            return None
        found[name] = value
    return found


def run(hook: str, module: ModuleType) -> None:
    """Install the hook of that name on `module`. Raises nothing."""
    if recorder.off:
        return
    try:
        _enter()
        getattr(import_module(f"ettrain.record.hooks.{_HOME[hook]}"), hook)(module)
    except Exception as error:  # noqa: BLE001 - the guard's rule
        guard.fault(f"cannot hook {module.__name__}", error)


def failed(error: BaseException) -> None:
    """An exception leaves the program before torch was imported: write it down, if this process is the job's."""
    if recorder.off:
        return
    try:
        _enter()
        exits.failed(error)
    except Exception as fault:  # noqa: BLE001 - the guard's rule
        guard.fault("exception not recorded", fault)


_state = {"entered": False}


def _enter() -> None:
    """Once per process: take over the imports seen so far, and watch for the process's end."""
    if _state["entered"]:
        return
    _state["entered"] = True
    exits.install(recorder)
    boot: Any = sys.modules.get("_ettrain_boot")
    if boot is not None:
        born = clock.process_start_ns(os.getpid()) or 0
        for name, begin, end in boot.imports:
            if begin >= born:
                _imported(name, begin, end)
        boot.imports.clear()
        boot.sink = _imported


def _imported(name: str, begin: int, end: int) -> None:
    """Called by the boot module in the midst of the program's import statements."""
    try:
        recorder.imported(name, begin, end)
    except Exception as error:  # noqa: BLE001 - the guard's rule
        guard.fault("import", error)

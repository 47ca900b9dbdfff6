"""What `ett run` was asked to improve in a program that knows nothing of it: called by the boot module after torch's leaf modules.

The boot module calls `run` with each hooked module of torch once it was executed and hooked; the table says which part wants to
see which module, and which environment name asks for it. A part that fails switches off only itself.
"""

from __future__ import annotations

import os
from importlib import import_module
from types import ModuleType
from typing import Final

from ettrain.record.guard import guard

ASKED: Final[dict[str, tuple[tuple[str, str, str], ...]]] = {
    "torch.serialization": (("ETT_ASYNC_CHECKPOINT", "ettrain.boost.existing.saving", "attach_asked"),),
    "torch.distributed.distributed_c10d": (("ETT_ASYNC_CHECKPOINT", "ettrain.boost.existing.peers", "attach_asked"),),
    "torch.distributed.checkpoint.state_dict_saver": (("ETT_ASYNC_CHECKPOINT", "ettrain.boost.existing.dcpsaving", "attach_asked"),),
    "torch._dynamo.callback": (("ETT_COMPILE_CACHE", "ettrain.boost.compilecache.cache", "attach_asked"),),
    "torch._inductor.select_algorithm": (("ETT_AUTOTUNE", "ettrain.boost.autotune.pins", "attach_asked"),),
    "triton.runtime.autotuner": (("ETT_AUTOTUNE", "ettrain.boost.autotune.pins", "attach_asked"),),
}
"""Module of torch -> (environment name that asks for it, module of the part, function called with torch's module)."""


def run(module: ModuleType) -> None:
    """Let the parts that were asked for take hold of `module`. Raises nothing."""
    for env, home, function in ASKED.get(module.__name__, ()):
        if not os.environ.get(env):
            continue
        try:
            getattr(import_module(home), function)(module)
        except Exception as error:  # noqa: BLE001 - the guard's rule
            guard.fault(f"{home}.{function}", error)

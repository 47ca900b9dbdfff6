"""ettrain: measure and raise Effective Training Time, the share of a training job's time that trains on new data.

Importing this package does nothing but hand on names; each is loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ettrain._version import VERSION as __version__  # noqa: N811 - the name that packages bear

if TYPE_CHECKING:
    from ettrain.boost.checkpoint.checkpointer import Checkpointer
    from ettrain.boost.comms.groups import process_groups
    from ettrain.boost.compilecache.cache import CompileCache
    from ettrain.boost.first.face import first_batch
    from ettrain.boost.publish.face import publish
    from ettrain.boost.startup.face import Startup
    from ettrain.boost.warm.face import warm_compile
    from ettrain.record.api import stage, step, steps

__all__ = [
    "Checkpointer",
    "CompileCache",
    "Startup",
    "__version__",
    "first_batch",
    "process_groups",
    "publish",
    "stage",
    "step",
    "steps",
    "warm_compile",
]

_HOMES = {
    "Checkpointer": "ettrain.boost.checkpoint.checkpointer",
    "CompileCache": "ettrain.boost.compilecache.cache",
    "Startup": "ettrain.boost.startup.face",
    "process_groups": "ettrain.boost.comms.groups",
    "first_batch": "ettrain.boost.first.face",
    "publish": "ettrain.boost.publish.face",
    "stage": "ettrain.record.api",
    "step": "ettrain.record.api",
    "steps": "ettrain.record.api",
    "warm_compile": "ettrain.boost.warm.face",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ettrain' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value

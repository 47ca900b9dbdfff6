"""Less traffic before the first step: groups made once and by their members only, metadata and plans that need no exchange.

Each part is usable alone and does nothing until it is called; docs/comms.md says what each saves and on what condition. Measuring the
traffic is the recorder's business (`record.hooks.collectives`), saying what is avoidable the report's (`ett report --comms`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ettrain.boost.comms.groups import process_groups
    from ettrain.boost.comms.mesh import mesh
    from ettrain.boost.comms.plans import plan_cache
    from ettrain.boost.comms.shards import sharded_tensor
    from ettrain.boost.comms.tables import local_shard_metadata

__all__ = ["local_shard_metadata", "mesh", "plan_cache", "process_groups", "sharded_tensor"]

_HOMES = {
    "local_shard_metadata": "tables",
    "mesh": "mesh",
    "plan_cache": "plans",
    "process_groups": "groups",
    "sharded_tensor": "shards",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ettrain.boost.comms' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"ettrain.boost.comms.{home}"), name)
    globals()[name] = value
    return value

"""What one rank tells another is true: at a barrier, and where objects are exchanged, a rank's own saves are done.

Not here: collectives of tensors, by which programs train; they wait for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ettrain.boost.existing.saving import pending as queue
from ettrain.record.hooks.wrap import wraps

PEERS: Final = ("barrier", "monitored_barrier", "all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list")
"""Functions by which ranks tell one another that something is done."""


def attach_asked(module: Any) -> None:
    """Called by `boost.entry` with `torch.distributed.distributed_c10d`. What ranks tell one another is told when it is true."""
    for name in PEERS:
        setattr(module, name, _settled(getattr(module, name), queue.settle))
    module.destroy_process_group = _settled(module.destroy_process_group, queue.wait)


def _settled(function: Callable[..., Any], settle: Callable[[], None]) -> Callable[..., Any]:
    @wraps(function)
    def settled(*args: Any, **kwargs: Any) -> Any:
        if queue.active:
            settle()
        return function(*args, **kwargs)

    return settled

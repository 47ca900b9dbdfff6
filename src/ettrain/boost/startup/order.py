"""The agreement between ranks on the order of their collectives: ranks that differ would hang, or mix up each other's data.

Compared once, by one small collective, as soon as there is a process group.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from ettrain.errors import UsageError


class Agreement:
    """The order in which this rank will run its collective stages, until it was compared."""

    __slots__ = ("_compared", "names")

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self._compared = False

    def check(self) -> None:
        """Compare with the other ranks, once, where there are any. Every rank comes here at the same place of its order.

        Raises:
            UsageError: a rank has another order.
        """
        distributed: Any = sys.modules.get("torch.distributed")
        if self._compared or distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return
        self._compared = True
        world = distributed.get_world_size()
        if world < 2:
            return
        theirs: list[Any] = [None] * world
        distributed.all_gather_object(theirs, self.names)
        different = next((rank for rank, names in enumerate(theirs) if names != theirs[0]), None)
        if different is not None:
            raise UsageError(
                f"the ranks would run their collective stages in different orders: rank 0 {' > '.join(theirs[0])}; "
                f"rank {different} {' > '.join(theirs[different])}. Declare the same collective stages in the same order on every rank."
            )

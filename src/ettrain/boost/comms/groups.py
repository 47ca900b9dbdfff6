"""One process group per distinct set of ranks, made by its members alone and connected when it is first used.

`torch.distributed.new_group` must be called by every rank of the job for every group, in the same order, and makes a new group each time.
Its `use_local_synchronization` asks the members only, but names the group after the number of groups the rank already has: members of
which one has more groups than another wait for each other under different names until the timeout. Here the name follows from ranks,
backend and timeout, so members agree whatever else they did before. Gloo connects to all members at once, which deadlocks where members
ask in different orders: groups made here connect at their first collective (`TORCH_GLOO_LAZY_INIT`), as NCCL's do.
"""

from __future__ import annotations

import os
import threading
from _thread import get_ident
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from hashlib import sha1
from typing import Any, Final

import torch.distributed as dist

from ettrain.boost.comms.private import lookup
from ettrain.errors import UsageError

_C10D: Final = "torch.distributed.distributed_c10d"
_LAZY: Final = "TORCH_GLOO_LAZY_INIT"
_INSTEAD: Final = "Use torch.distributed.new_group, called by all ranks, until ettrain knows this torch."

Key = tuple[tuple[int, ...], str, timedelta | None]


class ProcessGroups:
    """The groups handed out in this process. They live until torch destroys them; a destroyed one is made anew when asked for."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._world: Any = None
        self._groups: dict[Key, Any] = {}
        self._made: dict[Key, int] = {}

    def __call__(self, ranks: Iterable[int] | None = None, *, backend: str | None = None, timeout: timedelta | None = None) -> Any:
        """The process group of these ranks: the same object for the same ranks, backend and timeout. Only members need to ask.

        Args:
            ranks: global ranks, in any order; None = all.
            backend: e.g. "gloo"; None = the default group's.
            timeout: of its operations; None = the backend's default.
        Returns:
            The default group for all ranks, where neither backend nor timeout ask for another; `GroupMember.NON_GROUP_MEMBER` for
            ranks without this one, and nothing is made.
        Raises:
            UsageError: there is no default group yet, or such ranks do not exist.
            UnsupportedTorchError: this torch names its groups in another way.
        """
        world = dist.group.WORLD
        if world is None:
            raise UsageError("process_groups: there is no default group yet. Call torch.distributed.init_process_group first.")
        members = _members(ranks, world.size())
        with self._lock:
            if world is not self._world:
                self._world, self._groups, self._made = world, {}, {}
            if len(members) == world.size() and timeout is None and _is_default(backend):
                return world
            if world.rank() not in members:
                return dist.GroupMember.NON_GROUP_MEMBER
            key = members, (backend or "").lower(), timeout
            group = self._groups.get(key)
            if group is None or not _alive(group):
                group = self._groups[key] = self._make(key, world)
            return group

    def _make(self, key: Key, world: Any) -> Any:
        members, backend, timeout = key
        number = self._made.get(key, 0)
        name = "ett-" + sha1(repr((members, backend, timeout, number)).encode(), usedforsecurity=False).hexdigest()
        with _named(name), _unconnected(world):
            group = dist.new_group(
                list(members), timeout=timeout, backend=backend or None, use_local_synchronization=True, group_desc="ettrain"
            )
        self._made[key] = number + 1
        return group


process_groups: Final = ProcessGroups()


def _members(ranks: Iterable[int] | None, size: int) -> tuple[int, ...]:
    members = tuple(range(size)) if ranks is None else tuple(sorted({int(rank) for rank in ranks}))
    if not members or members[0] < 0 or members[-1] >= size:
        raise UsageError(f"process_groups: ranks {list(members)[:8]}: name at least one, each from 0 to {size - 1}")
    return members


def _is_default(backend: str | None) -> bool:
    return backend is None or backend.lower() in (str(dist.get_backend()), dist.get_backend_config())


def _alive(group: Any) -> bool:
    """Whether torch still knows the group."""
    try:
        dist.get_process_group_ranks(group)
    except (KeyError, ValueError, RuntimeError):
        return False
    return True


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Let torch call the group that this thread makes by a name that all members derive alike."""
    import torch.distributed.distributed_c10d as c10d

    theirs = lookup(_C10D, "_process_group_name", _INSTEAD)
    mine = get_ident()

    def ours(ranks: Any, use_hashed_name: Any) -> Any:
        return name if get_ident() == mine else theirs(ranks, use_hashed_name)

    c10d._process_group_name = ours
    try:
        yield
    finally:
        c10d._process_group_name = theirs


@contextmanager
def _unconnected(world: Any) -> Iterator[None]:
    """Let backends connect at the first collective. A device bound to the default group would make NCCL split that group's communicator,
    which takes all of its ranks; so it is unbound for this moment.
    """
    asked, device = os.environ.get(_LAZY), world.bound_device_id
    if asked is None:
        os.environ[_LAZY] = "1"
    if device is not None:
        world.bound_device_id = None
    try:
        yield
    finally:
        if asked is None:
            del os.environ[_LAZY]
        if device is not None:
            world.bound_device_id = device

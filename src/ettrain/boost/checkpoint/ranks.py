"""How the ranks of a job agree about a checkpoint: notes in a store of their own, each wait bounded.

No collective is used, so a save on a background thread can neither mix with the training's collectives nor wait for ever for a rank
that is gone, and nothing is lost when the program destroys its process groups. Rank 0 hosts the store.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final

from torch import distributed

from ettrain.errors import CheckpointSaveError

_CONNECT: Final = timedelta(seconds=60)


class Ranks:
    """Notes between the ranks.

    Args:
        rank: this process's.
        world: how many there are.
        stores: to the store of rank 0, one connection per thread that uses it; none where there is one rank.
    """

    def __init__(self, rank: int, world: int, stores: tuple[Any, ...]) -> None:
        self.rank, self.world = rank, world
        self._stores = stores
        self._own: dict[str, bytes] = {}

    @property
    def main(self) -> Notes:
        """For the training's thread."""
        return Notes(self._stores[0] if self._stores else None, self._own)

    @property
    def background(self) -> Notes:
        """For the thread of a save."""
        return Notes(self._stores[1] if self._stores else None, self._own)

    @classmethod
    def meet(cls) -> Ranks:
        """All ranks of the default process group; alone where there is none. Every rank must call it.

        Raises:
            CheckpointSaveError: they cannot reach the store of rank 0.
        """
        if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() == 1:
            return cls(0, 1, ())
        rank, world = distributed.get_rank(), distributed.get_world_size()
        address: list[Any] = [None]
        served = None
        if rank == 0:
            served, address = _serve()
        distributed.broadcast_object_list(address, src=0)
        if not address[0]:
            raise CheckpointSaveError("rank 0 cannot open a port for the checkpoints' store")
        host, port = address[0]
        try:
            stores = tuple(distributed.TCPStore(host, port, is_master=False, timeout=_CONNECT, wait_for_workers=False) for _ in range(2))
        except (RuntimeError, ValueError) as error:
            raise CheckpointSaveError(f"rank {rank} cannot reach the checkpoints' store at {host}:{port}: {_first_line(error)}") from None
        return cls(rank, world, (*stores, served))

    def keys(self, name: str) -> list[str]:
        """The notes of that name of all ranks."""
        return [f"{name}/{rank}" for rank in range(self.world)]


class Notes:
    """One thread's access to the notes."""

    def __init__(self, store: Any, own: dict[str, bytes]) -> None:
        self._store, self._own = store, own

    def put(self, key: str, value: Any) -> None:
        """Leave a note.

        Raises:
            CheckpointSaveError: rank 0, which keeps the notes, is gone.
        """
        data = pickle.dumps(value)
        if self._store is None:
            self._own[key] = data
            return
        try:
            self._store.set(key, data)
        except RuntimeError as error:
            raise CheckpointSaveError(f"rank 0 is gone: {_first_line(error)}") from None

    def take(self, key: str, timeout: float) -> Any:
        """Wait for a note; it stays.

        Raises:
            CheckpointSaveError: it did not come in time, or rank 0 is gone.
        """
        return self.take_all([key], timeout)[0]

    def take_all(self, keys: list[str], timeout: float) -> list[Any]:
        """Wait for several notes together.

        Raises:
            CheckpointSaveError: as `take`; names the ranks that were waited for.
        """
        if self._store is None:
            return [pickle.loads(self._own[key]) for key in keys]  # noqa: S301 - of this very process
        try:
            self._store.wait(keys, timedelta(seconds=timeout))
            return [pickle.loads(self._store.get(key)) for key in keys]  # noqa: S301 - from a rank of this very job, over its own store
        except RuntimeError as error:
            raise CheckpointSaveError(self._why(keys, timeout, error)) from None

    def there(self, key: str) -> bool:
        """Whether the note was left; False too where rank 0 is gone."""
        if self._store is None:
            return key in self._own
        try:
            return bool(self._store.check([key]))
        except RuntimeError:
            return False

    def forget(self, keys: Iterable[str]) -> None:
        """Throw notes away; nothing is raised."""
        for key in keys:
            if self._store is None:
                self._own.pop(key, None)
                continue
            with contextlib.suppress(RuntimeError):
                self._store.delete_key(key)

    def _why(self, keys: list[str], timeout: float, error: Exception) -> str:
        missing = [key.rpartition("/")[2] for key in keys if not self.there(key)]
        if "imeout" not in str(error):
            return f"rank 0 is gone: {_first_line(error)}"
        return f"rank {', '.join(missing)} did not answer within {timeout:.0f} s" if missing else f"no answer within {timeout:.0f} s"


def _serve() -> tuple[Any, list[Any]]:
    """Rank 0's store and its address; no address where it cannot be opened."""
    host = os.environ.get("MASTER_ADDR") or socket.gethostname()
    try:
        store = distributed.TCPStore(host, 0, is_master=True, timeout=_CONNECT, wait_for_workers=False)
    except (RuntimeError, ValueError):
        return None, [None]
    return store, [(host, store.port)]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]

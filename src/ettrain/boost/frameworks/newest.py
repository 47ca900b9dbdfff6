"""The newest checkpoint of a folder and one text in it, for frameworks that have to know before they build what is restored."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from torch import distributed

from ettrain.boost.checkpoint.folder import CheckpointFolder
from ettrain.boost.checkpoint.reading import load, reader_of


@dataclass(frozen=True, slots=True)
class Newest:
    """The checkpoint to go on from."""

    name: str = ""
    """'' = there is none."""
    world: int = 0
    """Ranks that saved it."""
    text: str = ""


def newest(address: str | os.PathLike[str], key: str) -> Newest:
    """The newest checkpoint that verifies, with the text under `key` in it. The same on every rank, and all must call it."""
    found: list[Any] = [None]
    alone = not distributed.is_available() or not distributed.is_initialized()
    if alone or distributed.get_rank() == 0:
        found = [_read(CheckpointFolder(address), key)]
    if not alone:
        distributed.broadcast_object_list(found, src=0)
    (read,) = found
    return read if isinstance(read, Newest) else Newest()


def _read(folder: CheckpointFolder, key: str) -> Newest:
    """Those that are passed over are told when the Checkpointer passes them over."""
    for found in folder.newest():
        if found.manifest is not None and folder.verify(found.name).ok:
            state: dict[str, Any] = {key: ""}
            load(state, reader_of(folder.path(found.name)), no_dist=True)
            return Newest(found.name, found.manifest.world, str(state[key]))
    return Newest()

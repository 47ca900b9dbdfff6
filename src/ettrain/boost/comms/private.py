"""The private names of torch and TorchRec that this part needs, and the one look-up of them. A contract test reads the table."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from ettrain.errors import EttrainError

PRIVATE: Final[dict[str, tuple[str, ...]]] = {
    "torch.distributed.distributed_c10d": ("_process_group_name",),
    "torch.distributed._shard.sharded_tensor": ("ShardedTensor._init_from_local_shards_and_global_metadata",),
}
"""Private names of torch; what is built on them stands beside each use."""

TESTED_TORCHREC: Final = ("1.8.", "1.9.")
"""Versions of TorchRec whose modules `tables` knows; what it uses of them is looked up there."""


class UnsupportedTorchError(EttrainError):
    """A private name of torch that a part needs is not in this torch."""

    def __init__(self, name: str, instead: str) -> None:
        self.name, self.instead = name, instead
        super().__init__(name)

    def __str__(self) -> str:
        return f"this torch has no {self.name}. {self.instead}"


def lookup(module: str, name: str, instead: str) -> Any:
    """A private object of torch.

    Args:
        module: where it lives.
        name: dotted name in it; stands in `PRIVATE`.
        instead: what the caller of ours can do where it is missing.
    Raises:
        UnsupportedTorchError: this torch does not have it.
    """
    found: Any = import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
        if found is None:
            raise UnsupportedTorchError(f"{module}.{name}", instead)
    return found

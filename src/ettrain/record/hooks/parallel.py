"""Process groups, parallel wrappers, device initialisation."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from ettrain.record.guard import guard
from ettrain.record.hooks import private
from ettrain.record.hooks.wrap import argument, staged, wrap_init
from ettrain.record.recorder import now, rank_of_environment, recorder


def on_c10d(module: ModuleType) -> None:
    """Process groups. Who joins one is a trainer, with the rank that it joins as."""

    def promote(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        rank, world = argument(args, kwargs, 4, "rank"), argument(args, kwargs, 3, "world_size")
        if isinstance(rank, int) and rank >= 0:
            recorder.promote(rank, world if isinstance(world, int) and world > 0 else None)
        else:
            recorder.promote(*rank_of_environment())

    def joined(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        if module.is_initialized():
            recorder.emit({"k": "rank", "t": now(), "rank": module.get_rank(), "world": module.get_world_size()})
            return {"part": str(module.get_backend())}
        return {}

    module.init_process_group = staged(module.init_process_group, "process_group_init", promote=promote, after=joined)
    module.new_group = staged(module.new_group, "process_group_init", after=lambda args, kwargs: {"part": "new_group"})
    module.destroy_process_group = staged(module.destroy_process_group, "teardown")


def on_ddp(module: ModuleType) -> None:
    """DistributedDataParallel(...)."""
    wrap_init(module.DistributedDataParallel, "train_module_creation")


def on_fsdp(module: ModuleType) -> None:
    """FullyShardedDataParallel(...)."""
    wrap_init(module.FullyShardedDataParallel, "train_module_creation")


def on_fully_shard(module: ModuleType) -> None:
    """fully_shard(...)."""
    module.fully_shard = staged(module.fully_shard, "train_module_creation")


def on_torchrec(module: ModuleType) -> None:
    """TorchRec's DistributedModelParallel(...)."""
    wrap_init(module.DistributedModelParallel, "train_module_creation")


def on_cuda(module: ModuleType) -> None:
    """The first touch of the devices. It runs on every call into CUDA: once it has succeeded, it is only passed through."""
    run = private(module, "_lazy_init")
    if run is None:
        return

    @functools.wraps(run)
    def _lazy_init() -> Any:
        if recorder.off or module.is_initialized():
            return run()
        begin = now()
        result = run()
        try:
            recorder.span("device_init", begin, now())
        except Exception as error:  # noqa: BLE001 - the guard's rule
            guard.fault("device_init", error)
        return result

    module._lazy_init = _lazy_init  # type: ignore[attr-defined]

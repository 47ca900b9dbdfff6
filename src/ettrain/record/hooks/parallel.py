"""Process groups, parallel wrappers, device initialisation."""

from __future__ import annotations

from typing import Any

from ettrain.record.guard import guard
from ettrain.record.hooks import collectives, private
from ettrain.record.hooks.wrap import Args, Kwargs, argument, staged, wrap_init, wraps
from ettrain.record.rank import rank_of_environment
from ettrain.record.recorder import now, recorder


def on_c10d(module: Any) -> None:
    """Process groups. Who joins one is a trainer, with the rank that it joins as."""
    collectives.on_c10d(module)

    def promote(args: Args, kwargs: Kwargs) -> None:
        rank, world = argument(args, kwargs, 4, "rank"), argument(args, kwargs, 3, "world_size")
        if isinstance(rank, int) and rank >= 0:
            recorder.promote(rank, world if isinstance(world, int) and world > 0 else None)
        else:
            recorder.promote(*rank_of_environment())

    def joined(args: Args, kwargs: Kwargs) -> dict[str, Any]:
        if module.is_initialized():
            recorder.emit({"k": "rank", "t": now(), "rank": module.get_rank(), "world": module.get_world_size()})
            return {"part": str(module.get_backend())}
        return {}

    module.init_process_group = staged(module.init_process_group, "process_group_init", promote=promote, after=joined)
    module.new_group = staged(module.new_group, "process_group_init", after=lambda args, kwargs: {"part": "new_group"})
    module.destroy_process_group = staged(module.destroy_process_group, "teardown")


def on_ddp(module: Any) -> None:
    """DistributedDataParallel(...)."""
    wrap_init(module.DistributedDataParallel, "train_module_creation")


def on_fsdp(module: Any) -> None:
    """FullyShardedDataParallel(...)."""
    wrap_init(module.FullyShardedDataParallel, "train_module_creation")


def on_fully_shard(module: Any) -> None:
    """fully_shard(...)."""
    module.fully_shard = staged(module.fully_shard, "train_module_creation")


def on_torchrec(module: Any) -> None:
    """TorchRec's DistributedModelParallel(...)."""
    wrap_init(module.DistributedModelParallel, "train_module_creation")


def on_cuda(module: Any) -> None:
    """The first touch of the devices. Every call into CUDA passes here: once one has succeeded, it is only passed through."""
    found = private(module)
    if found is None:
        return
    run = found["_lazy_init"]
    done = False

    @wraps(run)
    def _lazy_init() -> Any:
        nonlocal done
        if done or recorder.off or module.is_initialized():
            return run()
        begin = _touching()
        try:
            result = run()
            done = True
            return result
        finally:
            _device_touched(begin, there=done)

    module._lazy_init = _lazy_init


def _touching() -> int:
    try:
        return recorder.open_stage("device_init")
    except Exception as error:  # noqa: BLE001 - the guard's rule
        guard.fault("device_init", error)
        return 0


def _device_touched(begin: int, *, there: bool) -> None:
    """The devices are there, or they are not: then it was no stage."""
    try:
        if there:
            recorder.close_stage("device_init", begin)
        else:
            recorder.drop_stage(begin)
    except Exception as error:  # noqa: BLE001 - the guard's rule
        guard.fault("device_init", error)

"""Trains a plain MLP with AdamW (about `--gib` GiB of parameters and optimizer state per job) and saves it in one way; prints one JSON line.

Run by `bench/checkpoint.py`, alone or under torchrun (FSDP2 over the ranks). A step is a whole one: forward, backward, AdamW over all
parameters. Per save: what the call blocked, what the optimizer's step then waited for staging, and by how much the steps beside it were
slower than the median of the steps before it.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

WIDTH = 2048
WARM, BASE, BETWEEN = 4, 8, 4
MIB = 1 << 20


class Way:
    """One way to save: `start` blocks; `staged` is asked before an optimizer's step; `durable` says when it is over."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
        self.model, self.optimizer, self.folder = model, optimizer, folder
        self.number = 0

    def state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def next_folder(self) -> Path:
        self.number += 1
        return self.folder / f"save-{self.number}"

    def stepped(self, step: int) -> None:
        """After every step."""

    def start(self, step: int) -> None:
        raise NotImplementedError

    def staged(self) -> None:
        """Wait until the state may change."""

    def durable(self) -> bool:
        return True

    def finish(self) -> None:
        """Wait until the save is over."""

    def written(self, begin: float) -> float | None:
        """Seconds from the state being copied, or from `begin`, until all is on the disk; None where that cannot be told."""
        return None

    def close(self) -> None:
        """At the end."""


class TorchSave(Way):
    """torch.save of this rank's part, and fsync."""

    def start(self, step: int) -> None:
        folder = self.next_folder()
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"rank-{_rank()}.pt").open("wb") as file:
            torch.save(self.state(), file)
            file.flush()
            os.fsync(file.fileno())


class DcpSave(Way):
    """dcp.save."""

    def start(self, step: int) -> None:
        dcp.save(self.state(), checkpoint_id=self.next_folder())


class DcpAsync(Way):
    """dcp.async_save as it comes: `thread` or `process`."""

    process = False

    def __init__(self, *rest: Any) -> None:
        super().__init__(*rest)
        self.future: Any = None
        self.staging: Any = None
        self.more: dict[str, Any] = {"process_group": dist.new_group(backend="gloo")} if dist.get_world_size() > 1 else {}

    def start(self, step: int) -> None:
        kind = AsyncCheckpointerType.PROCESS if self.process else AsyncCheckpointerType.THREAD
        told = dcp.async_save(self.state(), checkpoint_id=self.next_folder(), async_checkpointer_type=kind, **self.more)
        self.future = getattr(told, "upload_completion", told)
        self.future.add_done_callback(lambda _: setattr(self, "ended", time.perf_counter()))
        self.staging = getattr(told, "staging_completion", None)

    def staged(self) -> None:
        if self.staging is not None:
            self.staging.result()
            self.staging = None

    def durable(self) -> bool:
        return bool(self.future.done())

    def written(self, begin: float) -> float | None:
        return self.ended - begin

    def finish(self) -> None:
        self.future.result()


class DcpProcess(DcpAsync):
    process = True


class Tuned(DcpAsync):
    """dcp.async_save tuned by hand: a process, one stager for all saves, shared memory, staging beside the next step."""

    process = True

    def __init__(self, *rest: Any) -> None:
        super().__init__(*rest)
        self.more["async_stager"] = DefaultStager(StagingOptions(False, True, True, False))


class Nvrx(Way):
    """nvidia-resiliency-ext's asynchronous torch.save (forks; does not fsync). Its CUDA calls are taken out, since there is no device."""

    def __init__(self, *rest: Any) -> None:
        super().__init__(*rest)
        from nvidia_resiliency_ext.checkpointing.async_ckpt.torch_ckpt import TorchAsyncCheckpoint

        torch.cuda.synchronize = lambda *_: None  # type: ignore[assignment]
        self.saver = TorchAsyncCheckpoint(persistent_queue=False)

    def start(self, step: int) -> None:
        folder = self.next_folder()
        folder.mkdir(parents=True, exist_ok=True)
        self.saver.async_save(self.state(), folder / f"rank-{_rank()}.pt")

    def durable(self) -> bool:
        self.saver.finalize_async_save(blocking=False)
        return not self.saver._async_calls_queue.get_num_unfinalized_calls()

    def finish(self) -> None:
        self.saver.finalize_async_save(blocking=True)


class Ours(Way):
    """ett.Checkpointer."""

    def __init__(self, *rest: Any) -> None:
        super().__init__(*rest)
        from ettrain import Checkpointer

        self.checkpointer = Checkpointer(self.folder, model=self.model, optimizer=self.optimizer, every=None, keep=1)

    def stepped(self, step: int) -> None:
        self.checkpointer.stepped(step)

    def start(self, step: int) -> None:
        self.checkpointer.save(step)

    def durable(self) -> bool:
        return not self.checkpointer.saving

    def finish(self) -> None:
        self.checkpointer.wait()

    def written(self, begin: float) -> float | None:
        newest = max(self.folder.glob("step-*/manifest.json"), key=lambda path: path.parent.name)
        return float(json.loads(newest.read_text())["seconds"]["write"])

    def close(self) -> None:
        self.checkpointer.close()


WAYS: dict[str, type[Way]] = {
    "torch.save": TorchSave, "dcp.save": DcpSave, "dcp thread": DcpAsync, "dcp process": DcpProcess, "tuned": Tuned, "nvrx": Nvrx, "ett": Ours,
}  # fmt: skip


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def pss_mib(pid: int) -> float:
    """Memory of a process and all below it, shared pages by their share."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    total, todo = 0.0, [pid]
    while todo:
        one = todo.pop()
        todo += children.get(one, [])
        try:
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0) / 1024
    return total


def raw_rate(folder: Path, size: int) -> float:
    """Bytes per second of one plain sequential write of `size` bytes by direct I/O, then fsync."""
    import mmap

    piece = mmap.mmap(-1, 16 * MIB)
    piece.write(os.urandom(16 * MIB))
    path = folder / f"raw-{_rank()}"
    begin = time.perf_counter()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
    for offset in range(0, size, len(piece)):
        os.pwrite(descriptor, piece, offset)
    os.fsync(descriptor)
    os.close(descriptor)
    took = time.perf_counter() - begin
    path.unlink()
    return size / took


class Run:
    """One training, and its saves."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        torch.manual_seed(0)
        layers = round(args.gib * (1 << 30) / (3 * 4 * WIDTH * (WIDTH + 1)))
        self.model: nn.Module = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers)))
        if dist.get_world_size() > 1:
            mesh = init_device_mesh("cpu", (dist.get_world_size(),))
            for layer in self.model:
                fully_shard(layer, mesh=mesh)
            fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, foreach=False)
        self.waited = 0.0
        self.optimizer.register_step_pre_hook(self._begin_wait)
        self.folder = Path(args.folder) / args.way.replace(" ", "-").replace(".", "-")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.way: Way | None = None
        self.x = torch.randn(args.batch, WIDTH)
        self.steps = 0

    def _begin_wait(self, *_: Any) -> None:
        self.waiting_since = time.perf_counter()

    def _end_wait(self, *_: Any) -> None:
        assert self.way is not None
        self.way.staged()
        self.waited += time.perf_counter() - self.waiting_since

    def step(self) -> float:
        """One step; seconds without what it waited for staging."""
        waited, begin = self.waited, time.perf_counter()
        self.optimizer.zero_grad()
        self.model(self.x).square().mean().backward()
        self.optimizer.step()
        took = time.perf_counter() - begin - (self.waited - waited)
        self.steps += 1
        if self.way is not None:
            self.way.stepped(self.steps)
        return took

    def save(self, watch: Callable[[], None] = lambda: None) -> dict[str, float]:
        """One save, and training beside it until it is durable."""
        way = self.way
        assert way is not None
        if dist.get_world_size() > 1:
            dist.barrier()
        normal = median(self.step() for _ in range(BETWEEN))
        self.waited, begin = 0.0, time.perf_counter()
        way.start(self.steps)
        blocking = time.perf_counter() - begin
        beside = []
        while not self._durable(way):
            watch()
            beside.append(self.step())
        way.finish()
        total = time.perf_counter() - begin
        return {
            "blocking": blocking, "staging": self.waited, "slower": sum(took - normal for took in beside), "steps_beside": len(beside),
            "step": normal, "total": total, "written": way.written(begin) or total,
        }  # fmt: skip

    def _durable(self, way: Way) -> bool:
        """Whether it is over on all ranks, which must do the same number of steps."""
        mine = torch.tensor([0.0 if way.durable() else 1.0])
        if dist.get_world_size() > 1:
            dist.all_reduce(mine)
        return not mine.item()

    def all(self) -> dict[str, Any]:
        for _ in range(WARM):
            self.step()
        size = sum(p.to_local().numel() if hasattr(p, "to_local") else p.numel() for p in self.model.parameters()) * 12
        before = peak = pss_mib(os.getpid())
        way = self.way = WAYS[self.args.way](self.model, self.optimizer, self.folder)
        self.optimizer.register_step_pre_hook(self._end_wait)
        rates = [raw_rate(self.folder, size)]
        saves = [self.save() for _ in range(self.args.saves)]
        rates.append(raw_rate(self.folder, size))

        def watch() -> None:
            nonlocal peak
            peak = max(peak, pss_mib(os.getpid()))

        self.save(watch)
        watch()
        way.close()
        return {"size": size, "raw_rate": median(rates), "saves": saves, "memory_mib": peak - before}


def main() -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", choices=WAYS, required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--saves", type=int, default=4)
    parser.add_argument("--batch", type=int, default=64)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        dist.init_process_group("gloo", rank=0, world_size=1)
    told = Run(args).all()
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, told)
    if _rank() == 0:
        print(json.dumps(every), flush=True)
    dist.destroy_process_group()
    shutil.rmtree(args.folder, ignore_errors=True)
    sys.stdout.flush()


if __name__ == "__main__":
    main()

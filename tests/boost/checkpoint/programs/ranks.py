"""Trains on several ranks and saves as it goes: `torchrun ... ranks.py FOLDER STEPS --kind ddp|fsdp [--fault NAME]`.

Prints, per rank, the sample ids of each step, and at the end a digest of the whole model and optimizer, which does not depend on how
many ranks there are.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from ettrain import Checkpointer
from ettrain.boost.checkpoint import staging, writing
from ettrain.errors import EttrainError

SAMPLES, BATCH = 120, 4


def say(line: str) -> None:
    """One line in one write: the ranks share the pipe."""
    os.write(1, f"{line}\n".encode())


def wrapped(kind: str) -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 1))
    if kind == "ddp":
        return DistributedDataParallel(model)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def inject(fault: str) -> None:
    """What goes wrong on the last rank."""
    if dist.get_rank() != dist.get_world_size() - 1:
        return
    if fault == "stage":

        def failing(*_: Any) -> None:
            raise RuntimeError("injected")

        staging.Stage.copy = failing  # type: ignore[method-assign]
    if fault == "write":
        write = writing.Writer.write

        def broken(self: Any, *rest: Any) -> Any:
            os.kill(self.pid, 19)
            os.kill(self.pid, 9)
            return write(self, *rest)

        writing.Writer.write = broken  # type: ignore[method-assign]


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    model_state, optimizer_state = get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True))
    told = hashlib.sha256()
    for state in (model_state, *(optimizer_state.get("state", {}).values())):
        for name, value in sorted(state.items()):
            told.update(name.encode() + value.double().numpy().tobytes())
    return told.hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("steps", type=int)
    parser.add_argument("--kind", default="ddp")
    parser.add_argument("--every", default="2")
    parser.add_argument("--fault", default="")
    parser.add_argument("--pause", type=float, default=0.0)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = wrapped(args.kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(1))
    loader = DataLoader(TensorDataset(data, data.sum(1, keepdim=True), torch.arange(SAMPLES)), batch_size=BATCH, shuffle=True)
    every: Any = int(args.every) if args.every.isdecimal() else args.every
    checkpointer = Checkpointer(args.folder, model=model, optimizer=optimizer, loader=loader, every=every, seed=3, timeout=10.0)
    say(f"R {rank} {checkpointer.restore()}")
    inject(args.fault)
    while checkpointer.step < args.steps:
        for index, batch in checkpointer.steps():
            optimizer.zero_grad()
            (model(batch[0]) - batch[1]).square().mean().backward()
            optimizer.step()
            say(f"S {rank} {index} {' '.join(map(str, batch[2].tolist()))}")
            time.sleep(args.pause)
            if index + 1 >= args.steps:
                checkpointer.stepped(index + 1)
                break
    say(f"D {rank} {digest(model, optimizer)}")
    try:
        checkpointer.close()
    except EttrainError as error:
        say(f"X {rank} {error}")
        sys.exit(error.exit_code)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Trains over a loader it follows, and may be killed at any instant: torchrun once.py FOLDER LIFE --workers N --kind KIND.

Each rank appends what it trained to a log right after the step, and every few steps all ranks save {model, position}; the newest checkpoint of
which all ranks' files and the mark are there is gone on from. Two steps with one number in the log: the later life's is the surviving one.
"""

import argparse
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from ettrain.boost import generators
from ettrain.boost.feed import follow

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import feedcases as cases

EPOCHS = 3
EVERY = 5


def loader_of(kind, rank, world, workers, size):
    if kind == "stream":
        dataset = cases.ShardedStream(size, rank, world)
        return DataLoader(dataset, 6, num_workers=workers, persistent_workers=workers > 0)
    sampler = DistributedSampler(range(size), world, rank) if world > 1 else None
    kinds = {"plain": DataLoader}
    if kind == "stateful":
        from torchdata.stateful_dataloader import StatefulDataLoader

        kinds[kind] = StatefulDataLoader
    return kinds[kind](cases.Noisy(size), 6, sampler=sampler, shuffle=sampler is None, num_workers=workers)


def newest(folder):
    marks = sorted(folder.glob("step-*/done"))
    return (0, None) if not marks else (int(marks[-1].parent.name[5:]), marks[-1].parent)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("life", type=int)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--kind", default="plain")
    parser.add_argument("--size", type=int, default=401)
    told = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = torch.nn.Linear(5, 1).double()
    optimizer = torch.optim.AdamW(model.parameters())
    loader = loader_of(told.kind, rank, world, told.workers, told.size)
    feed = follow(loader, rank=rank, world=world)
    step, checkpoint = newest(told.folder)
    if checkpoint is not None:
        saved = [torch.load(file, weights_only=True) for file in sorted(checkpoint.glob("rank-*"))]
        mine = saved[rank] if len(saved) == world else saved[0]
        model.load_state_dict(mine["model"])
        optimizer.load_state_dict(mine["optimizer"])
        feed.load([each["feed"] for each in saved], at_resume=lambda: generators.put_back(generators.from_plain(mine["random"])))
    log = (told.folder / f"log-{told.life}-{rank}").open("a", buffering=1)
    while feed.epoch < EPOCHS:
        epoch = feed.epoch
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        for batch in feed:
            loss = model(batch).mean()
            optimizer.zero_grad()
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            step += 1
            log.write(json.dumps({"step": step, "epoch": epoch, "ids": [int(row[0]) for row in batch], "noise": batch[:, 1].tolist()}) + "\n")
            if step % EVERY == 0:
                save(told.folder / f"step-{step:06d}", rank, {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "feed": feed.state(),
                    "random": generators.as_plain(generators.take()),
                })
    digest = sum(float(parameter.sum()) for parameter in model.parameters())
    left = feed.state().get("plan", {}).get("lead", [])
    (told.folder / f"end-{told.life}-{rank}").write_text(json.dumps({"digest": digest, "left": left, "steps": step}))
    dist.destroy_process_group()


def save(folder, rank, state):
    folder.mkdir(exist_ok=True)
    torch.save(state, folder / f"new-{rank}")
    os.replace(folder / f"new-{rank}", folder / f"rank-{rank:05d}")
    dist.barrier()
    if rank == 0:
        for stale in range(dist.get_world_size(), 8):  # a step that was saved before by more ranks
            (folder / f"rank-{stale:05d}").unlink(missing_ok=True)
        (folder / "done").touch()


if __name__ == "__main__":
    main()

"""Saves over and over as careful programs do: beside, on the disk, renamed, named in `latest`, the oldest removed. Usage: rotating.py FOLDER."""

import os
import sys
import time
from pathlib import Path

import torch


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    latest = folder / "latest"
    begin = torch.load(folder / latest.read_text())["step"] if latest.exists() else 0
    for step in range(begin + 1, begin + 10_000):
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        time.sleep(0.002)
        if step % 3:
            continue
        temporary = folder / "new.tmp"
        with temporary.open("wb") as file:
            torch.save({"step": step, "ballast": torch.full((300_000,), float(step))}, file)
            os.fsync(file.fileno())
        temporary.replace(folder / f"step-{step}.pt")
        beside = folder / "latest.tmp"
        beside.write_text(f"step-{step}.pt")
        beside.replace(latest)
        old = sorted(folder.glob("step-*.pt"), key=lambda path: int(path.stem[5:]))
        for path in old[:-2]:
            path.unlink()
        print(step, flush=True)


if __name__ == "__main__":
    main()

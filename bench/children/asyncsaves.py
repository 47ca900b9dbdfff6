"""One training that saves by torch's own function and in the background, in turns: run by `bench/async_checkpoint.py` under `ett run --async-checkpoint`."""

import json
import os
import sys
import time
from statistics import median

import torch

from ettrain.boost.existing.saving import pending

FOLDER, MIB, TURNS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
PLAIN = torch.save
while hasattr(PLAIN, "__wrapped__"):
    PLAIN = PLAIN.__wrapped__
WAYS = ("page cache", "on disk", "background")


def main() -> None:
    """Print one JSON line: way -> seconds the call took, and with the slow-down of the steps while it was written."""
    side = int((MIB * 2**20 / 12 / 8) ** 0.5)
    model = torch.nn.Sequential(*(torch.nn.Linear(side, side) for _ in range(8)))
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.ones(8, side)

    def step() -> float:
        begun = time.monotonic()
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        return time.monotonic() - begun

    step()
    blocking: dict[str, list[float]] = {way: [] for way in WAYS}
    effective: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(TURNS):
        for way in WAYS:
            os.sync()
            usual = median(step() for _ in range(5))
            path = os.path.join(FOLDER, "checkpoint.pt")
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            begun = time.monotonic()
            if way == "background":
                torch.save(state, path)
            else:
                PLAIN(state, path + ".plain")
            if way == "on disk":
                descriptor = os.open(path + ".plain", os.O_RDWR)
                os.fsync(descriptor)
                os.close(descriptor)
            blocking[way].append(time.monotonic() - begun)
            slower = 0.0
            while pending.active:
                slower += step() - usual
            effective[way].append(blocking[way][-1] + slower)
    print(json.dumps({"blocking": blocking, "effective": effective, "bytes": os.path.getsize(path)}))


if __name__ == "__main__":
    main()

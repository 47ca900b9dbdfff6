"""Trains a little, saves, and ends in the way asked for while the disk is slow. Usage: ending.py WAY FOLDER."""

import os
import signal
import sys
import threading
import time

import torch

WAY, FOLDER = sys.argv[1], sys.argv[2]
PATH = os.path.join(FOLDER, "checkpoint.pt")
FSYNC = os.fsync


def slow_fsync(descriptor):
    if threading.current_thread() is not threading.main_thread():
        time.sleep(float(os.environ.get("DISK", "0")))
        if WAY == "full":
            raise OSError(28, "No space left on device")
    FSYNC(descriptor)


def train():
    os.makedirs(FOLDER, exist_ok=True)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    begin = torch.load(PATH)["step"] if os.path.exists(PATH) else 0
    print("resumed at", begin, flush=True)
    for step in range(begin + 1, 41):
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        time.sleep(0.02)
        if step in (10, 20):
            if step == 20:
                os.path.exists(PATH)
                os.fsync = slow_fsync
            torch.save({"step": step, "model": model.state_dict(), "ballast": torch.zeros(100_000)}, PATH)
        if step == 35 and WAY == "killed" and begin == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if step == 20 and WAY in ("exit", "error", "full", "vanish", "quiet"):
            break
    if WAY == "exit":
        sys.exit(3)
    if WAY == "error":
        raise RuntimeError("the program's own")
    if WAY == "vanish":
        os._exit(0)


def child(_, way):
    train()


if __name__ == "__main__":
    if WAY == "spawned":
        torch.multiprocessing.spawn(child, args=(WAY,), nprocs=1)
    else:
        train()

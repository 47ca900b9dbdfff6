"""Children that step as fast as they can and acknowledge each step, killed at random instants."""
# ruff: noqa: E402

import os
import random
import signal
import sys
import time
from pathlib import Path

import ettrain as ett

ROOT = Path(os.environ["ETT_JOB_DIR"]).parent
torch_too = sys.argv[2] == "torch"
if torch_too:
    import torch

    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
from lab import tell


def fast(acknowledge):
    number = 0
    while True:
        if number % 50 == 7:
            with ett.stage("evaluation", part=number):
                pass
        ett.step(number)
        acknowledge()
        number += 1


def real(acknowledge):
    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        opt.zero_grad()
        model(torch.randn(4, 8)).mean().backward()
        opt.step()
        acknowledge()


def child(pipe):
    try:
        (real if torch_too else fast)(lambda: os.write(pipe, b"."))
    finally:
        os._exit(1)


dice = random.Random(7)
results = []
for number in range(int(sys.argv[1])):
    os.environ["ETT_JOB_DIR"] = str(ROOT / "jobs" / f"{number:03d}")
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        child(write)
    os.close(write)
    acknowledged = 0
    if number % 3:
        acknowledged += len(os.read(read, 1))
        time.sleep(dice.uniform(0, 0.1 if torch_too else 0.02))
    else:
        time.sleep(dice.uniform(0, 0.01))  # it may not even have begun
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    while chunk := os.read(read, 1 << 16):
        acknowledged += len(chunk)
    os.close(read)
    results.append(acknowledged)
tell(results)

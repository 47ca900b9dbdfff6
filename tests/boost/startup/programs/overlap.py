"""A start of stages that wait, compute elsewhere, draw and belong to the main thread; says what came of it as JSON."""

import json
import os
import random
import sys
import threading
import time
from pathlib import Path

import ettrain as ett

start = ett.Startup()


@start.stage
def loader():
    time.sleep(0.8)
    return "loader"


@start.stage(collective=True, bill="process_group_init")
def process_group():
    time.sleep(0.6)
    return "group"


@start.stage(rng=True)
def model():
    time.sleep(0.3)
    return [random.random() for _ in range(3)]


@start.stage(process=True)
def index():
    time.sleep(0.2)
    return {"pid": os.getpid(), "main": __name__, "sum": sum(range(1000))}


@start.stage(main=True)
def signals(model):
    time.sleep(0.2)
    return threading.current_thread() is threading.main_thread()


@start.stage(rng=True)
def head():
    return random.random()


@start.stage(collective=True)
def train_module_creation(model, process_group):
    time.sleep(0.5)
    return process_group


def children():
    pids = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [Path(f"/proc/{pid}/cmdline").read_bytes().decode() for pid in pids]


if __name__ == "__main__":
    random.seed(7)
    before = time.monotonic()
    ready = start.run()
    took = time.monotonic() - before
    index_process = ready.index.pop("pid")
    result = {**vars(ready), "then": random.random()}
    print(json.dumps({"took": took, "result": result, "threads": threading.active_count(), "children": children(), "elsewhere": index_process != os.getpid()}))
    sys.exit(0)

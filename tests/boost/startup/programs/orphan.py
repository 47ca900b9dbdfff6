"""Says the process id of a stage in another process, then is killed itself."""

import os
import signal
import time
from pathlib import Path

import ettrain as ett

start = ett.Startup()


@start.stage(process=True)
def forever():
    time.sleep(600)


@start.stage
def dies():
    while True:
        for task in Path("/proc/self/task").iterdir():
            for pid in (task / "children").read_text().split():
                time.sleep(0.5)
                print(pid, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.05)


if __name__ == "__main__":
    start.run()

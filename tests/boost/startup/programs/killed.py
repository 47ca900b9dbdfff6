"""A start that is killed while it waits for a stage."""

import os
import signal
import time

import ettrain as ett

start = ett.Startup()


@start.stage
def loader():
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)


start.run()

"""A rank without torch: it says its steps itself, so that it is recorded, and does as it is told.

rank.py STEPS [then exit=N | die | hang | hang-deaf | sleep=S | slow-end=S | once=FILE | stamp-and-die FILE]
"""

import atexit
import os
import signal
import sys
import time

import ettrain as ett

then, _, value = (sys.argv[2] if len(sys.argv) > 2 else "exit=0").partition("=")
if then == "slow-end":
    atexit.register(time.sleep, float(value))  # before the recorder's own: exit handlers run last in, first out
for number in range(int(sys.argv[1])):
    ett.step(number)
    time.sleep(0.02)
if then == "exit":
    sys.exit(int(value))
if then == "slow-end":
    sys.exit(0)
if then == "die":
    os.kill(os.getpid(), signal.SIGKILL)
if then == "hang-deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if then == "stamp-and-die":
    with open(value, "w") as file:
        file.write(str(time.monotonic_ns()))
        file.flush()
        os._exit(1)
if then == "once":
    if not os.path.exists(value):
        open(value, "w").close()
        time.sleep(3600)
    sys.exit(0)
time.sleep(float(value or 3600))

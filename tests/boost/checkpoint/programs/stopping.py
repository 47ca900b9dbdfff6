"""A loop of short steps that saves and ends when asked to: `python stopping.py FOLDER [WHAT]`. No torch."""

import os
import signal
import sys
import threading
import time

import ettrain as ett
from ettrain.boost.checkpoint.stops import Stops

FOLDER, WHAT = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
RANK = os.environ.get("RANK", "0")


def note(name, text=""):
    with open(os.path.join(FOLDER, f"{name}-{RANK}"), "a") as file:
        file.write(f"{text}\n")


def earlier(number, frame):
    note("earlier", "after the save" if os.path.exists(os.path.join(FOLDER, f"saved-{RANK}")) else "before")


if WHAT == "handler" or WHAT == "early handler":
    signal.signal(signal.SIGTERM, earlier)
if WHAT == "ignored":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if WHAT == "thread":
    made = []
    thread = threading.Thread(target=lambda: made.append(Stops()))
    thread.start()
    thread.join()
    stops = made[0]
else:
    stops = Stops(time_limit=31.0 if WHAT == "limit" else None)
    stops.agrees = WHAT == "alone"
if WHAT.startswith("early"):
    note("ready", os.getpid())
    time.sleep(1.0)
child = 0
if WHAT == "child":
    stops.asked()
    child = os.fork()
    if not child:
        while True:
            time.sleep(0.01)
    os.kill(child, signal.SIGTERM)
    note("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
for step in range(60):
    ett.step(step)
    if WHAT == "stuck" and step == 10:  # as in a collective whose other side has died
        import ctypes

        mutex = ctypes.create_string_buffer(256)
        note("stuck")
        for _ in range(2):
            ctypes.CDLL(None).pthread_mutex_lock(mutex)
    if WHAT == "long" and step == 10:  # as an evaluation
        note("stuck")
        until = time.monotonic() + 5
        while time.monotonic() < until:
            time.sleep(0.01)
    if WHAT == "nobody" and step == 10:
        stops.forget()
    if WHAT != "nobody" or step < 1:
        asked = stops.asked()
    if asked:
        note("why", stops.why())
        if WHAT == "alone":  # as a rank that waits for one that has died
            time.sleep(60)
        time.sleep(0.5 if WHAT == "slow" else 0.05)
        note("saved", step)
        stops.end()
        note("went on", step)
        asked = False
    if step == (9 if WHAT in ("stuck", "long") else 0):
        note("ready", os.getpid())
    time.sleep(0.03)
note("finished")

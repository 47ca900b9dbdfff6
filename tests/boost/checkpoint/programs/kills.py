"""Trains again and again, each time in a fresh process that is killed (SIGKILL) at some instant, and checks what survives.

`python kills.py FOLDER KILLS SEED`: prints a JSON line per attempt (how it was killed, where it went on) and a last one with the verdict.
Torch is imported once and each attempt is a fork of this process, before any thread or writer process is there.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from trainings import SAMPLES, step, training

from ettrain.boost.checkpoint import staging, writing
from ettrain.boost.checkpoint.folder import CheckpointFolder
from ettrain.boost.checkpoint.restore import Restore
from ettrain.boost.checkpoint.storage import LocalStorage

WIDTH = 100_000
EVERY = 2
BATCHES = SAMPLES // 8
NEVER = 1 << 40
LONGEST_S = 5.0
"""An attempt whose trap did not spring is killed then."""
POINTS = {
    "staging": (staging.Image, "fill"),
    "write": (writing.Writer, "write"),
    "manifest": (LocalStorage, "put"),
    "retention": (LocalStorage, "remove"),
    "restore": (Restore, "_loaded"),
    "verify": (LocalStorage, "chunks"),
    "claim": (LocalStorage, "make"),
}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def trap(point: str, chance: random.Random) -> None:
    """Die at some call of that point: before it, a moment into it, or after it."""
    owner, name = POINTS[point]
    original = getattr(owner, name)
    left = chance.randrange(1, 4 if point in ("restore", "verify") else 12)
    moment = chance.choice(("before", "after", "within"))
    delay = chance.uniform(0, 0.03)

    def trapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            if moment == "before":
                die()
            if moment == "within":
                signal.signal(signal.SIGALRM, lambda *_: die())
                import threading

                threading.Timer(delay, die).start()
        result = original(*args, **kwargs)
        if left == 0 and moment == "after":
            die()
        return result

    setattr(owner, name, trapped)


def attempt(folder: Path, log: Path, number: int, point: str, seed: int, epochs: int) -> None:
    """One process: go on from what there is, train, and note every sample before its step ends."""
    chance = random.Random(seed)
    if point in POINTS:
        trap(point, chance)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    one = training(folder, width=WIDTH, every=EVERY, keep=2)
    index = one.checkpointer.restore()
    os.write(out, f"R {number} {index} {one.checkpointer.restored_from or '-'}\n".encode())
    while one.checkpointer.epoch < epochs:
        for index, batch in one.checkpointer.steps():
            step(one, batch)
            os.write(out, f"S {number} {index} {' '.join(map(str, batch[2].tolist()))}\n".encode())
    one.checkpointer.close()
    os.write(out, f"E {number} {one.checkpointer.step}\n".encode())
    os._exit(0)


def newest(folder: Path) -> str:
    """The newest one that verifies, found by reading everything."""
    checkpoints = CheckpointFolder(folder)
    return next((found.name for found in checkpoints.newest() if checkpoints.verify(found.name).ok), "-")


def main() -> int:
    folder, kills, chance = Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3]))
    folder.mkdir(parents=True)
    log, checkpoints = folder / "log", folder / "checkpoints"
    epochs = NEVER
    killed, number, wrong = 0, 0, []
    ways = [*POINTS, "instant", "instant", "writer"]
    while True:
        way = "none" if killed >= kills else ways[number % len(ways)]
        expected = newest(checkpoints) if checkpoints.exists() else "-"
        if way == "none":
            epochs = int(expected.split("-")[1].partition(".")[0]) // BATCHES + 2
        code = one_attempt(checkpoints, log, number, way, chance, epochs)
        found = [line.split() for line in log.read_text().splitlines() if line.startswith(f"R {number} ")] if log.exists() else []
        if found and found[0][3] != expected:
            wrong.append({"attempt": number, "newest": expected, "went on from": found[0][3]})
        print(json.dumps({"attempt": number, "way": way, "code": code, "from": found[0][3] if found else None}), flush=True)
        killed += code == -signal.SIGKILL
        number += 1
        if code == 0:
            break
        if code != -signal.SIGKILL:
            wrong.append({"attempt": number - 1, "code": code})
            break
    print(json.dumps({"kills": killed, "wrong": wrong, **counted(log, epochs)}), flush=True)
    return bool(wrong)


def one_attempt(checkpoints: Path, log: Path, number: int, way: str, chance: random.Random, epochs: int) -> int:
    """Fork, kill, and say how it ended."""
    seed, wait = chance.randrange(1 << 30), chance.uniform(0.02, 1.5)
    pid = os.fork()
    if pid == 0:
        try:
            sys.stderr = open(os.devnull, "w")  # noqa: SIM115
            attempt(checkpoints, log, number, way, seed, epochs)
        finally:
            os._exit(99)
    if way in ("instant", "writer"):
        time.sleep(wait)
        for victim in children(pid) if way == "writer" else []:
            os.kill(victim, signal.SIGKILL)
            time.sleep(chance.uniform(0, 0.3))
        os.kill(pid, signal.SIGKILL)
    elif way != "none":
        deadline = time.monotonic() + LONGEST_S
        while time.monotonic() < deadline and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def counted(log: Path, epochs: int) -> dict[str, Any]:
    """How often each sample was trained in the history that survived."""
    lines = [line.split() for line in log.read_text().splitlines()]
    begins = {int(words[1]): int(words[2]) for words in lines if words[0] == "R"}
    attempts = sorted(begins)
    ends = {one: min([begins[later] for later in attempts if later > one], default=1 << 60) for one in attempts}
    seen = Counter(int(word) for words in lines if words[0] == "S" and int(words[2]) < ends[int(words[1])] for word in words[3:])
    return {
        "samples": len(seen),
        "epochs": epochs,
        "missing": sum(max(0, epochs - seen[i]) for i in range(SAMPLES)),
        "twice": sum(max(0, n - epochs) for n in seen.values()),
    }


if __name__ == "__main__":
    sys.exit(main())

"""For programs that import torch once, under the recorder, and then fork one child per case."""
# ruff: noqa: BLE001

import json
import os
import sys
import time
import traceback
from pathlib import Path


def in_child(function, *, job_dir=None, attempt=0):
    """Run `function` in a forked child that is a process of its own job; returns (its JSON result or None, exit status)."""
    if job_dir is not None:
        os.environ["ETT_JOB_DIR"] = str(job_dir)
    os.environ["ETT_ATTEMPT"] = str(attempt)
    read, write = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        code = 1
        try:
            result = function()
            end()
            os.write(write, json.dumps(result).encode())
            code = 0
        except SystemExit as error:
            code = error.code or 0
        except BaseException:
            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
            os._exit(code)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        raw = pipe.read()
    _, status = os.waitpid(pid, 0)
    return (json.loads(raw) if raw else None), os.waitstatus_to_exitcode(status)


def end():
    """What the interpreter's exit handlers would do."""
    from ettrain.record import exits

    for watch in exits._installed:
        watch.finish()


def tell(result):
    """The program's answer to the test."""
    sys.stdout.flush()
    print(json.dumps(result), flush=True)
    os._exit(0)


class Supervisor:
    """Writes what `ett run` writes about a job's attempts."""

    def __init__(self, root):
        from ettrain import clock
        from ettrain.journal import JournalWriter

        self.root = Path(root)
        self.root.mkdir(parents=True)
        self.clock = clock
        self.writer = JournalWriter(self.root / "supervisor.jsonl")
        wall, t = clock.wall_pair()
        self.write(k="head", schema=1, t=t, wall=wall, boot=clock.boot_id(), host="h", pid=os.getpid(), role="supervisor")
        self.write(k="job", command=["x"], restarts=1)

    def write(self, **record):
        self.writer.write({"t": self.clock.monotonic_ns(), **record})

    def attempt(self, number, function):
        """One attempt, of one process."""
        name = f"{number:03d}"
        self.write(k="begin", attempt=name, launch=number)
        result, code = in_child(function, job_dir=self.root, attempt=number)
        self.write(k="end", attempt=name, code=code, sent=[], oom=0)
        time.sleep(0.002)
        return result, code

    def close(self):
        self.write(k="bye")
        self.writer.close()

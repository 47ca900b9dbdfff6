"""One small training, again and again, while something of the recorder's goes wrong; one forked child per case."""
# ruff: noqa: E402, SLOT000

import hashlib
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

sys.path.insert(0, str(Path(__file__).parent))
RECORDED = "_ettrain_boot" in sys.modules
torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)


def train(at_step=lambda step: None, n=12):
    """Every hook fires: loader, backward, optimizer, evaluation, save, load."""
    torch.set_num_threads(1)
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), nn.Linear(8, 1))
    opt = torch.optim.AdamW(model.parameters())
    step = 0
    while step < n:
        model.train()
        for (x,) in DataLoader(TensorDataset(torch.randn(24, 8)), batch_size=4, shuffle=True):
            opt.zero_grad()
            model(x).pow(2).mean().backward()
            opt.step()
            step += 1
            at_step(step)
        model.eval()
        with torch.no_grad():
            for (x,) in DataLoader(TensorDataset(torch.randn(8, 8)), batch_size=4):
                model(x)
        torch.save(model.state_dict(), "model.pt")
        model.load_state_dict(torch.load("model.pt"))
    data = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    return hashlib.sha1(data).hexdigest() + f" {torch.rand(1).item():.9f}"


if not RECORDED:
    print(json.dumps(train()))
    sys.exit(0)

from lab import end, in_child, tell

import ettrain as ett
from ettrain.record.guard import guard
from ettrain.record.recorder import Recorder, recorder

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


@case
def nothing_wrong():
    return train()


@case
def many_stages():
    """Writes some 30 kB of journal."""

    def at_step(step):
        for _ in range(20):
            with ett.stage("a stage with a long name " * 2):
                pass

    return train(at_step)


@case
def folder_deleted():
    return train(lambda step: step == 5 and shutil.rmtree(os.environ["ETT_JOB_DIR"]))


@case
def forked():
    """The program forks a child of its own, which trains as well."""
    mine = []

    def at_step(step):
        if step == 5:
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    assert recorder.steps == 0 and recorder.output.journal is None
                    train(n=40)
                    os.write(2, b"child done\n")
                    code = 0
                finally:
                    os._exit(code)
            mine.append(os.waitpid(pid, 0)[1])

    result = train(at_step)
    assert mine == [0], mine
    assert recorder.steps == 12 == recorder.beat[2], recorder.steps
    return result


class Unprintable:
    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__

    def __bool__(self):
        raise RuntimeError("no truth")

    __eq__ = __bool__
    __hash__ = None


@case
def labels():
    class Weird(str):
        pass

    class Name(str):
        def __str__(self):
            raise RuntimeError("no text")

    parts = [Unprintable(), {("a", 1): 2}, b"\xff", "x" * 10_000_000, "\udcff\x00", [object()], Weird("w"), torch.zeros(3), 1e400, None, "", Name("n")]
    parts.append(parts)
    for part in parts:
        with ett.stage("labelled", part=part):
            pass
    for name in parts:
        with ett.stage(name):
            pass
    for number in (1, -5, 10**30, "nine", Unprintable()):
        ett.step(number)
    return train()


@case
def huge_exception():
    try:
        with ett.stage("fails"):
            raise ValueError("x" * 1_000_000)
    except ValueError as error:
        sys.excepthook(type(error), error, error.__traceback__)
    return train()


@case
def unprintable_exception():
    class Bad(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    try:
        raise Bad
    except Bad as error:
        from ettrain.record import exits

        exits._installed[0].record(error, "main")
    return train()


@case
def no_stderr():
    sys.stderr = None
    return broken("count")()


@case
def foreign_files():
    """Files that are none: what torch can write to, we must not look into."""
    import io

    class Hashing(io.BytesIO):
        """Counts what is read: a look into it would change the program's result."""

        reads = 0

        def read(self, *args):
            Hashing.reads += 1
            return super().read(*args)

    file = Hashing()
    torch.save(1, file)
    assert Hashing.reads == 0
    file.seek(0)
    before = Hashing.reads
    torch.load(file)
    with_us = Hashing.reads - before
    guard_off, recorder.off = recorder.off, True
    file.seek(0)
    before = Hashing.reads
    torch.load(file)
    assert with_us == Hashing.reads - before
    recorder.off = guard_off
    plain = io.BytesIO()
    torch.save(2, plain)
    end = plain.tell()
    plain.seek(0)
    assert torch.load(plain) == 2 and end == len(plain.getvalue())
    os.mkfifo("fifo")
    pid = os.fork()
    if pid == 0:
        with open("fifo", "rb") as pipe:
            Path("from_fifo.pt").write_bytes(pipe.read())
        os._exit(0)
    torch.save(3, "fifo")
    os.waitpid(pid, 0)
    assert torch.load("from_fifo.pt") == 3
    torch.save(4, "/dev/null")
    return train()


@case
def handler_raises_inside_us():
    """A timeout of the program's strikes while our code runs: it is the program's, and must reach it."""

    class Timeout(Exception):
        pass

    def handler(number, frame):
        raise Timeout

    signal.signal(signal.SIGALRM, handler)
    original = Recorder.count
    caught = []
    for method, once in (("count", train), ("open_stage", lambda: torch.save(1, "t.pt")), ("close_stage", lambda: torch.save(1, "t.pt"))):
        kept = getattr(Recorder, method)

        def slow(self, *args, kept=kept, **kwargs):
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            time.sleep(5)
            return kept(self, *args, **kwargs)

        setattr(Recorder, method, slow)
        try:
            once()
        except Timeout:
            caught.append(method)
        setattr(Recorder, method, kept)
    assert caught == ["count", "open_stage", "close_stage"], caught
    assert Recorder.count is original and guard.count == 0
    torch.save(1, "after.pt")
    recorder.in_child()
    return train()


@case
def interrupted_inside_us():
    kept = Recorder.open_stage

    def interrupted(self, *args, **kwargs):
        raise KeyboardInterrupt

    Recorder.open_stage = interrupted
    try:
        torch.save(1, "t.pt")
        raise AssertionError("an interrupt was swallowed")
    except KeyboardInterrupt:
        Recorder.open_stage = kept
    before = recorder.next_save()
    torch.save(1, "after.pt")
    assert recorder.next_save() == before + 2, "later saves are stages again"
    return train()


def broken(method):
    """Every call of that method of the recorder's raises."""

    def run():
        calls = []

        def raises(self, *args, **kwargs):
            calls.append(1)
            raise ZeroDivisionError(method)

        setattr(Recorder, method, raises)
        result = train()
        assert calls, f"{method} was never called"
        assert guard.count >= 1
        return result

    return run


for name in ("count", "open_stage", "close_stage", "span", "waited", "mark", "backward_done", "emit", "progress", "promote", "next_save"):
    CASES[f"broken_{name}"] = broken(name)


def broken_function(module, name):
    def run():
        target = __import__(f"ettrain.record.hooks.{module}", fromlist=["x"])
        *path, last = name.split(".")
        for part in path:
            target = getattr(target, part)
        calls = []

        def raises(*args, **kwargs):
            calls.append(1)
            raise ZeroDivisionError(name)

        setattr(target, last, raises)
        result = train()
        assert calls, f"{name} was never called"
        return result

    return run


for module, name in (
    ("checkpoint", "identity_of"), ("data", "Loop"), ("data", "Loops.delivered"), ("data", "Loops.trained"), ("data", "Loops.ended"),
    ("evaluation", "Evaluation.mode_set"), ("evaluation", "Evaluation.loop_over"),
):
    CASES[f"broken_{name}"] = broken_function(module, name)


def run(name):
    work = Path(os.environ["TEST_WORK"]) / name
    work.mkdir()
    os.chdir(work)
    fd = os.open("stderr", os.O_WRONLY | os.O_CREAT)
    os.dup2(fd, 2)
    result = CASES[name]()
    end()
    return {"result": result, "faults": guard.count, "beat_faults": recorder.beat[10], "steps": recorder.steps, "depth": recorder.beat[16]}


results = {}
for entry in sys.argv[1:] or list(CASES):
    name, _, folder = entry.partition("=")
    work = Path(os.environ["TEST_WORK"])
    outcome, code = in_child(lambda name=name: run(name), job_dir=folder or work / "jobs" / name)
    results[entry] = {"outcome": outcome, "code": code, "stderr": (work / name / "stderr").read_text()}
    if folder:
        (work / name).rename(work / f"{name}-{len(results)}")
tell(results)

"""Saves and resumes in every way known; each scenario is two attempts of one job, forked from this one warm process."""
# ruff: noqa: E402

import io
import json
import logging
import os
import shutil
import signal
import sys
import time
import warnings
from pathlib import Path

warnings.simplefilter("ignore")
logging.disable(logging.WARNING)
import torch
import torch.distributed.checkpoint as dcp
from lab import Supervisor, tell
from torch import nn

try:
    from safetensors.torch import load_file, save_file
except ImportError:
    save_file = None

ROOT = Path(os.environ["ETT_JOB_DIR"]).parent
torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
SCENARIOS = {}


def scenario(name, first, second):
    SCENARIOS[name] = (first, second)


def train(steps, after_step, start=0, model=None):
    torch.set_num_threads(1)
    model = model or nn.Linear(8, 8)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(start + 1, steps + 1):
        opt.zero_grad()
        model(torch.randn(4, 8)).pow(2).mean().backward()
        opt.step()
        after_step(step, model)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def saving(save, every=20, until=50):
    """Train, save every so often, and be killed right after step `until`."""

    def after_step(step, model):
        if step % every == 0:
            save(step, model)
        if step == until:
            die()

    return lambda: train(100, after_step)


def resuming(load, until=60):
    def run():
        model = nn.Linear(8, 8)
        step = load(model)
        train(until, lambda step, model: None, step, model)

    return run


def state(step, model):
    return {"model": model.state_dict(), "step": step}


def take(loaded, model):
    model.load_state_dict(loaded["model"])
    return loaded["step"]


def to(path):
    return lambda step, model: torch.save(state(step, model), path)


def of(path):
    return lambda model: take(torch.load(path), model)


scenario("overwrite", saving(to("last.pt")), resuming(of("last.pt")))
scenario("pathlib", saving(to(Path("last.pt"))), resuming(of(Path("last.pt"))))


def by_rename(step, model):
    torch.save(state(step, model), "x.tmp")
    os.replace("x.tmp", "last.pt")


scenario("tmp and rename", saving(by_rename), resuming(of("last.pt")))


def by_symlink(step, model):
    torch.save(state(step, model), f"ck{step}.pt")
    if os.path.lexists("latest"):
        os.unlink("latest")
    os.symlink(f"ck{step}.pt", "latest")


def each(step, model):
    torch.save(state(step, model), f"ck{step}.pt")


scenario("symlink", saving(by_symlink), resuming(of("latest")))
scenario("older chosen", saving(each), resuming(of("ck20.pt")))


def to_remote(step, model):
    torch.save(state(step, model), "local.pt")
    shutil.copy("local.pt", f"remote{step}.pt")
    os.unlink("local.pt")


scenario("copied away and loaded there", saving(to_remote), resuming(of("remote40.pt")))


def to_bytes(step, model):
    buffer = io.BytesIO()
    torch.save(state(step, model), buffer)
    Path("b.pt").write_bytes(buffer.getvalue())


scenario("bytes both ways", saving(to_bytes), resuming(lambda model: take(torch.load(io.BytesIO(Path("b.pt").read_bytes())), model)))
scenario("bytes saved, path loaded", saving(to_bytes), resuming(of("b.pt")))


def to_file(step, model):
    with open("f.pt", "wb") as file:
        torch.save(state(step, model), file)


def of_file(model):
    with open("f.pt", "rb") as file:
        return take(torch.load(file), model)


scenario("file objects", saving(to_file), resuming(of_file))
scenario("legacy format", saving(lambda s, m: torch.save(state(s, m), "old.pt", _use_new_zipfile_serialization=False)), resuming(of("old.pt")))

if save_file is not None:

    def to_safetensors(step, model):
        save_file(model.state_dict(), "m.safetensors")
        Path("step.json").write_text(json.dumps(step))

    def of_safetensors(model):
        model.load_state_dict(load_file("m.safetensors"))
        return json.loads(Path("step.json").read_text())

    scenario("safetensors", saving(to_safetensors), resuming(of_safetensors))

pretrained = ROOT / "pretrained.pt"
torch.save({"model": nn.Linear(8, 8).state_dict(), "step": 0}, pretrained)
scenario("pretrained only", saving(to("own.pt")), resuming(of(pretrained)))


def pretrained_then_resume(model):
    of(pretrained)(model)
    return of("last.pt")(model)


scenario("pretrained then resume", saving(to("last.pt")), resuming(pretrained_then_resume))


def in_parts(step, model):
    torch.save(model.state_dict(), "model.pt")
    torch.save({"step": step}, "trainer.pt")


def of_parts(model):
    model.load_state_dict(torch.load("model.pt"))
    return torch.load("trainer.pt")["step"]


scenario("model and trainer files", saving(in_parts), resuming(of_parts))


def best_and_last(step, model):
    if step == 20:
        torch.save(state(step, model), "best.pt")
    torch.save(state(step, model), "last.pt")


def of_last_and_best(model):
    step = of("last.pt")(model)
    torch.load("best.pt")
    return step


scenario("last and best", saving(best_and_last), resuming(of_last_and_best))


def to_dcp(step, model):
    dcp.save({"model": model.state_dict(), "step": torch.tensor(step)}, checkpoint_id=f"dcp{step}")


def of_dcp(folder):
    def load(model):
        loaded = {"model": model.state_dict(), "step": torch.tensor(0)}
        dcp.load(loaded, checkpoint_id=folder)
        return int(take(loaded, model))

    return load


def to_dcp_renamed(step, model):
    to_dcp(step, model)
    os.rename(f"dcp{step}", f"step-{step}")


def to_dcp_by_threads(step, model):
    writer = dcp.FileSystemWriter(f"dcp{step}", thread_count=4)
    dcp.save({"model": model.state_dict(), "step": torch.tensor(step)}, storage_writer=writer)


scenario("dcp", saving(to_dcp), resuming(of_dcp("dcp40")))
scenario("dcp renamed", saving(to_dcp_renamed), resuming(of_dcp("step-40")))
scenario("dcp by threads", saving(to_dcp_by_threads), resuming(of_dcp("dcp40")))


class Bomb:
    def __reduce__(self):
        die()


def killed_inside(step, model):
    torch.save(state(step, model) | ({"bomb": Bomb()} if step == 40 else {}), "last.pt" if step == 20 else "part.pt")


scenario("killed inside torch.save", saving(killed_inside), resuming(of("last.pt")))


def interrupted_inside(step, model):
    class Raises:
        def __reduce__(self):
            raise OSError("disk on fire")

    if step == 20:
        torch.save(state(step, model), "last.pt")
    else:
        try:
            torch.save(state(step, model) | {"bomb": Raises()}, "last2.pt")
        except OSError:
            pass


scenario("save that failed", saving(interrupted_inside), resuming(of("last.pt")))


def gloo():
    import torch.distributed as dist

    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())


def async_saves(commit, until=50):
    """`commit`: at which step to wait for the save of step 40; None = it never gets there."""

    def run():
        gloo()
        pending = []

        def after_step(step, model):
            if step in (20, 40):
                writer = SlowWriter(f"dcp{step}") if step == 40 and commit is None else dcp.FileSystemWriter(f"dcp{step}")
                pending.append(dcp.async_save({"model": model.state_dict(), "step": torch.tensor(step)}, storage_writer=writer, checkpoint_id=f"dcp{step}"))
                if step == 20:
                    pending[-1].result()
            if step == commit:
                pending[-1].result()
                time.sleep(0.1)  # a future wakes those who wait for it before it calls back
            if step == until:
                die()

        train(100, after_step)

    return run


class SlowWriter(dcp.FileSystemWriter):
    """The disk is so slow that the process dies first."""

    def finish(self, metadata, results):
        time.sleep(60)


scenario("async committed", async_saves(48), resuming(of_dcp("dcp40")))
scenario("async never committed", async_saves(None), resuming(of_dcp("dcp20")))


def in_background(step, model):
    import threading

    frozen = {"model": {k: v.clone() for k, v in model.state_dict().items()}, "step": step}
    thread = threading.Thread(target=torch.save, args=(frozen, f"bg{step}.pt"))
    thread.start()
    thread.join()


scenario("saved by a thread", saving(in_background), resuming(of("bg40.pt")))
scenario("fresh restart", saving(to("last.pt")), resuming(lambda model: 0))


def rolls_back_inside():
    """A loss spike: the program itself goes back to step 20 at step 30."""

    def after_step(step, model):
        if step == 20:
            torch.save(state(step, model), "last.pt")
        if step == 30:
            take(torch.load("last.pt"), model)

    train(40, after_step)


scenario("roll-back inside", rolls_back_inside, None)


def reads_best_at_the_end():
    def after_step(step, model):
        if step == 20:
            torch.save(state(step, model), "best.pt")

    train(40, after_step)
    torch.load("best.pt")


scenario("best read at the end", reads_best_at_the_end, None)

results = {}
for name, (first, second) in SCENARIOS.items():
    if sys.argv[1:] and name not in sys.argv[1:]:
        continue
    folder = ROOT / "jobs" / name.replace(" ", "-")
    work = ROOT / "work" / name.replace(" ", "-")
    work.mkdir(parents=True)
    os.chdir(work)
    supervisor = Supervisor(folder)
    codes = [supervisor.attempt(number, function)[1] for number, function in enumerate((first, second)) if function is not None]
    supervisor.close()
    results[name] = codes
tell(results)

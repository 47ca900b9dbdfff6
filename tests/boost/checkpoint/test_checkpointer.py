"""The Checkpointer in one process: what it writes, what it goes on from, what it makes of every mishap."""

from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from trainings import same, step, tensors, train, training

import ettrain
from ettrain.boost.checkpoint import staging, writer
from ettrain.boost.checkpoint.folder import CheckpointFolder
from ettrain.errors import CheckpointInvalidError, CheckpointSaveError, UsageError


@pytest.fixture(autouse=True)
def _released():
    """Every Checkpointer of a test lets go of its folder and its writer process."""
    yield
    from ettrain.boost.checkpoint import checkpointer

    for one in list(checkpointer._alive):
        one._release()
    gc.collect()


@pytest.fixture
def full_disk(tmp_path):
    """A file system with room for one checkpoint of the test and a half."""
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "none", str(tmp_path)], capture_output=True, check=False).returncode:
        pytest.skip("no permission to mount a small file system")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def names(folder):
    return sorted(path.name for path in Path(folder).glob("step-*"))


# ---- what is written


ALONE = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")


@ALONE
def test_any_dcp_reader_reads_it(tmp_path):
    model = nn.Sequential(nn.Linear(5, 7), nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last))
    for name, value in {
        "view": torch.arange(10)[2:5], "empty": torch.empty(0), "turned": torch.randn(3, 5, dtype=torch.bfloat16).t(),
        "scalar": torch.tensor(3.5), "expanded": torch.tensor([3.5]).expand(4), "conjugate": torch.randn(3, dtype=torch.cfloat).conj(),
        "strided": torch.randn(6, 8)[::2, ::3], "flags": torch.tensor([True, False]), "small": torch.randn(3).half(),
    }.items():  # fmt: skip
        model.register_buffer(name, value)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    checkpointer = ettrain.Checkpointer(tmp_path, model=model, optimizer=optimizer, every=None)
    model[0].weight.square().sum().backward()
    optimizer.step()
    checkpointer.save(1, wait=True)
    read = {
        "model": {name: torch.zeros_like(value).contiguous().clone() for name, value in model.state_dict().items()},
        "optimizer": {"state": {"0.weight": {"momentum_buffer": torch.zeros(7, 5)}}},
    }
    dcp.load(read, checkpoint_id=tmp_path / "step-00000001")
    for name, value in model.state_dict().items():
        assert torch.equal(read["model"][name], value), name
    assert torch.equal(read["optimizer"]["state"]["0.weight"]["momentum_buffer"], optimizer.state[model[0].weight]["momentum_buffer"])


@ALONE
def test_torchs_own_functions_take_its_optimizer_state(tmp_path):
    one = training(tmp_path)
    train(one, 3)
    one.checkpointer.save(3, wait=True)
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    other = nn.Sequential(nn.Linear(4, 32), nn.BatchNorm1d(32), nn.Dropout(0.2), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(other.parameters(), lr=1.0)
    model_state, optimizer_state = get_state_dict(other, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state}
    dcp.load(state, checkpoint_id=tmp_path / "step-00000003")
    set_state_dict(other, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    for mine, theirs in zip(one.optimizer.state.values(), optimizer.state.values(), strict=True):
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_a_torch_that_writes_otherwise_is_told_before_training(tmp_path, monkeypatch):
    monkeypatch.delattr(torch.serialization, "skip_data")
    with pytest.raises(UsageError, match=r"writes checkpoints in a way that is not known here \(AttributeError"):
        training(tmp_path)


def test_a_finished_checkpoint_verifies_and_says_what_it_is(tmp_path):
    one = training(tmp_path, every=4)
    one.checkpointer.metrics = {"loss": 0.25}
    train(one, 5)
    one.checkpointer.wait()
    folder = CheckpointFolder(tmp_path)
    (found,) = folder.newest()
    assert folder.verify(found.name).ok
    assert found.manifest is not None
    assert (found.step, found.manifest.world, found.manifest.metrics, found.manifest.position["samples"]) == (4, 1, {"loss": 0.25}, 32)
    assert found.manifest.versions["torch"] == torch.__version__


# ---- going on


@pytest.mark.parametrize("stop", [3, 8, 11])
def test_resumed_is_uninterrupted_bit_for_bit(tmp_path, stop):
    whole = training(tmp_path / "whole")
    _, all_ids = train(whole, 20)
    expected = tensors(whole)
    first = training(tmp_path / "cut")
    _, ids = train(first, stop)
    first.checkpointer.save(stop, wait=True)
    first.checkpointer._release()
    torch.manual_seed(99)
    second = training(tmp_path / "cut", seed=5)
    assert second.checkpointer.restore() == stop
    _, more = train(second, 20, start=stop)
    assert ids + more == all_ids
    assert same(tensors(second), expected)


@pytest.mark.parametrize("trains_first", [True, False])
@pytest.mark.parametrize("how", ["close", "save"])
def test_a_batch_is_in_the_checkpoint_if_it_was_trained_and_not_if_it_was_not(tmp_path, trains_first, how):
    whole = training(tmp_path / "whole")
    _, all_ids = train(whole, 16)
    one = training(tmp_path / "cut")
    ids = []
    for index, batch in one.checkpointer.steps():
        if index == 5 and not trains_first:
            break
        step(one, batch)
        ids += batch[2].tolist()
        if index == 4 and trains_first:
            break
    if how == "save":
        one.checkpointer.save(wait=True)
        one.checkpointer._release()
    else:
        one.checkpointer.close()
    again = training(tmp_path / "cut", seed=7)
    assert again.checkpointer.restore() == 5
    _, more = train(again, 16, start=5)
    assert ids + more == all_ids
    assert same(tensors(again), tensors(whole))


def test_without_a_checkpoint_it_starts_at_zero_and_says_so(tmp_path, capfd):
    one = training(tmp_path)
    before = tensors(one)
    assert one.checkpointer.restore() == 0
    assert same(tensors(one), before)
    assert f"no checkpoint to go on from in {tmp_path}: training from the start" in capfd.readouterr().err


@pytest.mark.parametrize("damage", ["flip", "cut", "manifest", "gone"])
def test_a_damaged_one_is_passed_over_with_the_reason(tmp_path, capfd, damage):
    one = training(tmp_path, every=2, keep=3)
    train(one, 6)
    one.checkpointer.close()
    newest = tmp_path / "step-00000006"
    data = newest / "__0_0.distcp"
    if damage == "flip":
        content = bytearray(data.read_bytes())
        content[len(content) // 2] ^= 1
        data.write_bytes(content)
    elif damage == "cut":
        os.truncate(data, data.stat().st_size - 1)
    elif damage == "manifest":
        os.truncate(newest / "manifest.json", 50)
    else:
        data.unlink()
    again = training(tmp_path)
    assert again.checkpointer.restore() == 4
    said = capfd.readouterr().err
    assert "goes on at step 4" in said
    assert damage == "manifest" or "passed over step-00000006: " in said


def test_another_models_checkpoint_is_an_error_and_changes_nothing(tmp_path):
    one = training(tmp_path)
    train(one, 2)
    one.checkpointer.save(2, wait=True)
    one.checkpointer._release()
    other = training(tmp_path, width=48)
    before = tensors(other)
    with pytest.raises(CheckpointInvalidError, match=r"another model's.*\(32,|another model's"):
        other.checkpointer.restore()
    assert same(tensors(other), before)


def test_code_in_a_ranks_own_file_is_refused_and_not_run(tmp_path):
    one = training(tmp_path)
    train(one, 2)
    one.checkpointer.save(2, wait=True)
    one.checkpointer._release()
    evil = tmp_path / "ran"
    path = tmp_path / "step-00000002" / "rank-00000.extra"

    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(evil),))

    torch.save(Evil(), path)
    import dataclasses
    import zlib

    from ettrain.boost.checkpoint.manifest import FileEntry, Manifest

    manifest = Manifest.from_bytes((path.parent / "manifest.json").read_bytes())
    entry = FileEntry(bytes=path.stat().st_size, crc32=f"{zlib.crc32(path.read_bytes()):08x}")
    changed = dataclasses.replace(manifest, files={**manifest.files, path.name: entry})
    (path.parent / "manifest.json").write_bytes(changed.to_bytes())
    again = training(tmp_path)
    with pytest.raises(CheckpointInvalidError, match="refused"):
        again.checkpointer.restore()
    assert not evil.exists()


def test_an_optimizer_that_never_stepped_is_not_stepped(tmp_path):
    one = training(tmp_path)
    before = tensors(one)
    one.checkpointer.save(0, wait=True)
    assert not one.optimizer.state
    assert same(tensors(one), before)
    one.checkpointer._release()
    again = training(tmp_path)
    assert again.checkpointer.restore() == 0


# ---- staging


def slow_copy(monkeypatch, seconds, started=None):
    copy = staging.Stage.copy

    def late(self, *args):
        if started is not None:
            started.set()
        time.sleep(seconds)
        copy(self, *args)

    monkeypatch.setattr(staging.Stage, "copy", late)


def test_the_optimizers_step_waits_until_the_state_is_copied(tmp_path, monkeypatch):
    one = training(tmp_path)
    train(one, 2)
    at_two = tensors(one)
    slow_copy(monkeypatch, 0.3)
    one.checkpointer.save(2)
    train(one, 6, start=2)
    one.checkpointer.wait()
    one.checkpointer._release()
    again = training(tmp_path)
    assert again.checkpointer.restore() == 2
    next(iter(again.checkpointer.steps()))
    assert same(
        {name: value for name, value in tensors(again).items() if name != "generator"},
        {name: value for name, value in at_two.items() if name != "generator"},
    )


def test_forward_and_backward_run_while_it_is_copied(tmp_path, monkeypatch):
    one = training(tmp_path)
    train(one, 2)
    started = threading.Event()
    slow_copy(monkeypatch, 1.0, started)
    one.checkpointer.save(2)
    started.wait()
    begun = time.monotonic()
    one.model(torch.randn(8, 4)).sum().backward()
    assert time.monotonic() - begun < 0.9
    begun = time.monotonic()
    one.optimizer.step()
    assert time.monotonic() - begun > 0.1
    one.checkpointer.wait()


def test_what_else_changes_the_state_fails_the_save_and_holds_the_next_one_up(tmp_path, monkeypatch, capfd):
    one = training(tmp_path)
    train(one, 2)
    started = threading.Event()
    slow_copy(monkeypatch, 0.3, started)
    one.checkpointer.save(2)
    started.wait()
    with torch.no_grad():
        one.model[0].weight.mul_(2)
    with pytest.raises(CheckpointSaveError, match="changed while it was copied"):
        one.checkpointer.wait()
    assert not names(tmp_path)
    one.checkpointer.save(3)
    with torch.no_grad():
        one.model[0].weight.mul_(0.5)
    doubled = one.model[0].weight.detach().clone() * 2
    one.checkpointer.wait()
    one.checkpointer._release()
    again = training(tmp_path)
    assert again.checkpointer.restore() == 3
    assert torch.equal(again.model[0].weight, doubled)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_a_compiled_optimizer_is_left_as_it_is_and_cannot_tear_a_checkpoint(tmp_path, monkeypatch):
    def graphs(hooked):
        torch._dynamo.reset()
        model = nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
        checkpointer = ettrain.Checkpointer(tmp_path / str(hooked), model=model, optimizer=optimizer, every=None) if hooked else None
        step = torch.compile(optimizer.step, backend="eager")
        torch._dynamo.utils.counters.clear()
        for number in range(4):
            model(torch.ones(8)).sum().backward()
            if checkpointer is not None and number == 2:
                slow_copy(monkeypatch, 0.3)
                checkpointer.save(number)
            step()
        counters = torch._dynamo.utils.counters
        return checkpointer, counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())

    _, plain, plain_breaks = graphs(False)
    checkpointer, hooked, breaks = graphs(True)
    assert (hooked, breaks) == (plain, plain_breaks)
    try:
        checkpointer.wait()
    except CheckpointSaveError as error:
        assert "changed while it was copied" in str(error)
        assert not names(tmp_path / "True")


# ---- mishaps


def test_an_object_whose_state_cannot_be_had_fails_the_save_and_not_the_training(tmp_path, capfd):
    class Moody:
        broken = False

        def state_dict(self):
            if self.broken:
                raise RuntimeError("not now")
            return {"mood": 1}

        def load_state_dict(self, state):
            pass

    moody = Moody()
    one = training(tmp_path, every=2, moody=moody)
    train(one, 3)
    one.checkpointer.wait()
    moody.broken = True
    train(one, 5, start=3)
    with pytest.raises(CheckpointSaveError, match="RuntimeError: not now"):
        one.checkpointer.wait()
    moody.broken = False
    one.checkpointer.save(5, wait=True)
    assert names(tmp_path) == ["step-00000002", "step-00000005"]


def test_a_killed_writer_fails_one_save_in_bounded_time_and_the_next_has_a_new_one(tmp_path, monkeypatch, capfd):
    one = training(tmp_path, width=200_000)
    train(one, 1)
    one.checkpointer.save(1, wait=True)
    before = one.checkpointer._saver.writer.pid
    sent, send = threading.Event(), writer.send
    monkeypatch.setattr(writer, "send", lambda *rest: (send(*rest), sent.set()))
    os.kill(before, signal.SIGSTOP)
    one.checkpointer.save(2)
    sent.wait()
    os.kill(before, signal.SIGKILL)
    with pytest.raises(CheckpointSaveError, match="writer process was killed by SIGKILL"):
        one.checkpointer.wait()
    assert names(tmp_path) == ["step-00000001"]
    one.checkpointer.save(3, wait=True)
    assert one.checkpointer._saver.writer.pid != before
    assert names(tmp_path) == ["step-00000001", "step-00000003"]


def test_a_writer_that_hangs_is_given_up(tmp_path):
    one = training(tmp_path, timeout=1.0)
    train(one, 1)
    one.checkpointer.save(1, wait=True)
    os.kill(one.checkpointer._saver.writer.pid, signal.SIGSTOP)
    with pytest.raises(CheckpointSaveError, match="did not finish within 1 s"):
        one.checkpointer.save(2, wait=True)
    one.checkpointer.save(3, wait=True)
    assert names(tmp_path) == ["step-00000001", "step-00000003"]


def test_a_slow_disk_only_makes_the_checkpoint_late(tmp_path):
    one = training(tmp_path, every=2)
    train(one, 1)
    one.checkpointer.wait()
    pid = one.checkpointer._saver.writer.pid
    os.kill(pid, signal.SIGSTOP)
    one.checkpointer.save(1)
    begun = time.monotonic()
    train(one, 2, start=1)
    assert time.monotonic() - begun < 10
    assert not names(tmp_path) or not CheckpointFolder(tmp_path).get("step-00000001").manifest
    os.kill(pid, signal.SIGCONT)
    one.checkpointer.wait()
    assert names(tmp_path) == ["step-00000001", "step-00000002"]


def test_a_full_disk_fails_the_save_says_so_and_leaves_the_one_before(tmp_path, full_disk):
    one = training(full_disk, width=400_000, keep=1)
    train(one, 1)
    one.checkpointer.save(1, wait=True)
    with pytest.raises(CheckpointSaveError, match="No space left on device"):
        one.checkpointer.save(2, wait=True)
    assert names(full_disk) == ["step-00000001"]
    one.checkpointer._release()
    again = training(full_disk, width=400_000)
    assert again.checkpointer.restore() == 1


def test_a_write_that_fails_on_the_way_fails_the_save_and_leaves_nothing_behind(tmp_path):
    one = training(tmp_path, width=200_000)
    train(one, 1)
    one.checkpointer.save(1, wait=True)
    pid = one.checkpointer._saver.writer.pid
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
    with pytest.raises(CheckpointSaveError, match=r"__0_0.distcp|File too large"):
        one.checkpointer.save(2, wait=True)
    assert names(tmp_path) == ["step-00000001"]
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    one.checkpointer.save(3, wait=True)
    assert names(tmp_path) == ["step-00000001", "step-00000003"]


def test_overlapping_saves_are_made_one_after_the_other(tmp_path, monkeypatch):
    one = training(tmp_path, keep=4)
    train(one, 1)
    slow_copy(monkeypatch, 0.05)
    for number in (1, 2, 3, 4):
        one.checkpointer.save(number)
    one.checkpointer.wait()
    assert names(tmp_path) == [f"step-{number:08d}" for number in (1, 2, 3, 4)]


def test_a_step_saved_again_gets_a_folder_of_its_own(tmp_path):
    one = training(tmp_path, keep=2)
    train(one, 1)
    one.checkpointer.save(1, wait=True)
    one.checkpointer.save(1, wait=True)
    assert names(tmp_path) == ["step-00000001", "step-00000001.1"]
    one.checkpointer._release()
    again = training(tmp_path)
    again.checkpointer.restore()
    assert again.checkpointer.restored_from == "step-00000001.1"


def test_only_so_many_are_kept(tmp_path):
    one = training(tmp_path, every=1, keep=2)
    train(one, 7)
    one.checkpointer.close()
    assert names(tmp_path) == ["step-00000006", "step-00000007"]


def test_a_second_job_in_the_same_folder_is_refused(tmp_path):
    training(tmp_path)
    with pytest.raises(UsageError, match=r"another job is saving its checkpoints there \(process"):
        training(tmp_path)


def test_memory_stays_flat_over_200_saves(tmp_path):
    one = training(tmp_path, width=50_000, keep=1)
    train(one, 1)

    def rss():
        gc.collect()
        pids = [os.getpid(), one.checkpointer._saver.writer.pid]
        return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 for pid in pids)

    for number in range(2, 30):
        one.checkpointer.save(number, wait=True)
    before, notes = rss(), len(one.checkpointer._ranks._own)
    for number in range(30, 230):
        one.checkpointer.save(number, wait=True)
    assert rss() - before < 4 << 20
    assert len(one.checkpointer._ranks._own) <= notes
    assert len([thread for thread in threading.enumerate() if thread.name.startswith("ettrain")]) <= 1


EXITING = """
import os, sys, threading, time
import torch, torch.distributed as dist
from trainings import train, training
from ettrain.boost.checkpoint import staging
os.environ |= {{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}}
dist.init_process_group("gloo", rank=0, world_size=1)
one = training({folder!r})
train(one, 2)
one.checkpointer.wait()
copy = staging.Stage.copy
staging.Stage.copy = lambda self, *rest: (time.sleep(0.5), copy(self, *rest))
one.checkpointer.save(2)
{ending}
"""


@pytest.mark.parametrize(
    ("ending", "code"),
    [("", 0), ("dist.destroy_process_group()", 0), ("sys.exit(3)", 3), ("raise KeyError", 1)],
    ids=["end", "destroy_process_group", "sys.exit", "uncaught"],
)
def test_a_save_under_way_is_finished_when_the_program_ends(tmp_path, ending, code):
    source = EXITING.format(folder=str(tmp_path / "ck"), ending=ending)
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    done = subprocess.run([sys.executable, "-c", source], env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr
    assert names(tmp_path / "ck") == ["step-00000002"]
    assert CheckpointFolder(tmp_path / "ck").verify("step-00000002").ok


def test_nothing_of_a_writer_is_left_after_its_trainer_was_killed(tmp_path):
    source = EXITING.format(folder=str(tmp_path / "ck"), ending="print(one.checkpointer._saver.writer.pid, flush=True); time.sleep(60)")
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    with subprocess.Popen([sys.executable, "-c", source], env=env, stdout=subprocess.PIPE, text=True) as process:
        pid = int(process.stdout.readline())
        process.kill()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()


def test_the_writer_needs_nothing_but_the_standard_library():
    source = Path(writer.__file__).read_text()
    imports = {
        line.split()[1].partition(".")[0]
        for line in source.splitlines()
        if line.startswith("import ") or (line.startswith("from ") and " import " in line)
    }
    assert imports <= set(sys.stdlib_module_names) | {"__future__"}

"""What the tests of publishing share: a checkpoint to publish from, a request in place, a publisher in this process."""

import os
import sys
import time
import warnings
import zlib
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

from ettrain.boost.checkpoint.folder import CheckpointFolder
from ettrain.boost.checkpoint.manifest import FileEntry, Manifest
from ettrain.boost.publish import face, launch, progress, work
from ettrain.boost.publish.target import Place, Target

PROGRAMS = Path(__file__).parent / "programs"
sys.path.insert(0, str(PROGRAMS))
import pubmodels  # noqa: E402


def trained(build=pubmodels.build, seed=0):
    torch.manual_seed(seed)
    model = build()
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    return model.eval(), optimizer


def write(folder, model, optimizer=None):
    write_state(folder, {"model": model.state_dict()} | ({"optimizer": optimizer.state_dict()} if optimizer is not None else {}))
    return str(folder)


def write_state(folder, state):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that one process alone saves alone
        dcp.save(state, storage_writer=dcp.FileSystemWriter(folder), no_dist=True)


def entry(path):
    return FileEntry(bytes=path.stat().st_size, crc32=f"{zlib.crc32(path.read_bytes()):08x}")


def save(root, step, model, optimizer=None, *, commit=True):
    """A checkpoint of ettrain's."""
    folder = CheckpointFolder(root)
    name = folder.claim(step)
    path = Path(write(folder.path(name), model, optimizer))
    files = {one.name: entry(one) for one in path.iterdir() if one.suffix == ".distcp" or one.name == ".metadata"}
    manifest = Manifest(step=step, created_ns=time.time_ns(), world=1, files=files, position={"epoch": 1, "samples": 64}, metrics={"loss": 0.5})
    if commit:
        folder.commit(name, manifest)
    return str(path), lambda: folder.commit(name, manifest)


def ask(monkeypatch, checkpoint, to, **more):
    """`ett.publish` without a process: the test is the publisher."""
    monkeypatch.setitem(launch.WAYS, "process", lambda place, request: "the test")
    model = more.pop("live", None)
    more = {"model": pubmodels.build, "batch": pubmodels.batch(), "reference": model, "name": "ranker", **more}
    return face.publish(checkpoint, to=to, **more)


def obey(publication, **more):
    return work.Publisher(Place(publication.folder), say=lambda line: None, pause_s=0.01, **more).run()


def target(to):
    return Target(to, "ranker")


def states(publication):
    return [one["state"] for one in progress.notes(Place(publication.folder))]


def ett(*words, timeout=120, **env):
    import subprocess

    paths = os.pathsep.join([str(PROGRAMS), *filter(None, [os.environ.get("PYTHONPATH")])])
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths, **env}
    command = [sys.executable, "-W", "ignore", "-c", "import sys; from ettrain.cli import main; sys.exit(main())", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environ, check=False)

"""Small checkpoints for tests of folders: plain bytes in place of a model."""

import os
import signal
import zlib

import fsspec

from ettrain.boost.checkpoint.folder import CheckpointFolder
from ettrain.boost.checkpoint.manifest import FileEntry, Manifest

PARTS = ("__0_0.distcp", "__1_0.distcp", ".metadata", "rank-00000.extra")


def entry(data):
    return FileEntry(bytes=len(data), crc32=f"{zlib.crc32(data):08x}")


def write(folder, name, contents):
    for file, data in contents.items():
        path = f"{folder.path(name)}/{file}"
        if folder.local:
            with open(path, "wb") as opened:
                opened.write(data)
                opened.flush()
                os.fsync(opened.fileno())
        else:
            fsspec.core.url_to_fs(path)[0].pipe_file(path, data)


def contents_of(step):
    return {file: f"{file} of step {step} ".encode() * (50 + index) for index, file in enumerate(PARTS)}


def manifest_of(step, contents, **more):
    return Manifest(
        step=step,
        created_ns=1_700_000_000_000_000_000 + step,
        world=2,
        files={file: entry(data) for file, data in contents.items()},
        **more,
    )


def save(folder: CheckpointFolder, step: int, **more) -> str:
    name = folder.claim(step)
    contents = contents_of(step)
    write(folder, name, contents)
    folder.commit(name, manifest_of(step, contents, **more))
    return name


def states(folder):
    return {found.name: found.state for found in folder.found()}


def dying_at(number):
    """A wrapper of calls: before the `number`th of all that are wrapped by it, the process gets SIGKILL."""
    count = 0

    def wrapped(call):
        def run(*args, **kwargs):
            nonlocal count
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return run

    return wrapped

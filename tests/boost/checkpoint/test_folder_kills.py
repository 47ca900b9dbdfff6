"""SIGKILL at random instants of saving and pruning as fast as it goes, with a reader beside it; and before every request to an object store."""

import os
import random
import signal
import time
import uuid

from ckptfolders import dying_at, save

from ettrain.boost.checkpoint.folder import CheckpointFolder
from ettrain.boost.checkpoint.objectstore import ObjectStorage
from ettrain.errors import CheckpointInvalidError

KILLS = 40


def forked(work):
    """Process id of a child that does `work`, and nothing else."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
    finally:
        os._exit(1)


def test_whatever_was_said_to_be_saved_is_there_after_every_kill_and_readers_never_see_half_of_it(tmp_path):
    draw = random.Random(7)
    wrong = tmp_path / "wrong"
    read = tmp_path / "read"

    def reader():
        folder, counted = CheckpointFolder(tmp_path / "c"), open(read, "ab", buffering=0)
        while True:
            for found in folder.newest():
                try:
                    with folder.reading(found.name):
                        verdict = folder.verify(found.name)
                except CheckpointInvalidError:
                    continue  # removed between being found and being held
                if not verdict.ok:
                    wrong.write_text(f"{found.name}: {verdict.why}")
                counted.write(b".")
            time.sleep(0.002)

    def saver(write):
        folder = CheckpointFolder(tmp_path / "c")
        folder.own({"job": "j"})
        newest = next(folder.newest(), None)
        folder.continue_from(newest.name if newest is not None else "")
        step = newest.step if newest is not None else 0
        while True:
            step += 1
            save(folder, step)
            os.write(write, b"%d\n" % step)
            folder.prune(2)

    watching = forked(reader)
    folder, said = CheckpointFolder(tmp_path / "c"), 0
    try:
        for _ in range(KILLS):
            out, into = os.pipe()
            pid = forked(lambda into=into: saver(into))
            os.close(into)
            with os.fdopen(out) as told:
                first = [told.readline() for _ in range(draw.randrange(4))]
                time.sleep(draw.uniform(0.0, 0.03))
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                said = max([said, *map(int, first), *map(int, told.read().split())])
            newest = next(folder.newest(), None)
            assert newest is None or folder.verify(newest.name).ok
            assert (0 if newest is None else newest.step) >= said
            assert len(folder.found()) <= 10  # those of a few kills between a commit and its retention
        assert not wrong.exists(), wrong.read_text()
        assert said > KILLS
        assert read.stat().st_size > 10
    finally:
        os.kill(watching, signal.SIGKILL)
        os.waitpid(watching, 0)


def test_killed_before_any_request_to_an_object_store_there_is_a_whole_checkpoint_or_none(tmp_path):
    """fsspec's file system of this host stands for the store: what one process sent another one finds."""

    def opened(address):
        folder = CheckpointFolder(f"memory://{uuid.uuid4()}")
        folder._storage = ObjectStorage(f"file://{address}")
        return folder

    ends = set()
    for number in range(1, 100):
        address = tmp_path / str(number)
        base = opened(address)
        base.own({"job": "j"})
        for step in (1, 2, 3):
            save(base, step)

        def work(address=address, number=number):
            folder = opened(address)
            fs = folder._storage.fs
            counted = dying_at(number)

            for name in ("pipe_file", "rm_file", "rmdir", "makedirs"):
                setattr(fs, name, counted(getattr(fs, name)))
            folder.own({"job": "j"})
            save(folder, 4)
            folder.prune(2)
            os._exit(0)

        killed = os.waitpid(forked(work), 0)[1] == signal.SIGKILL
        after = opened(address)
        for found in after.found():
            assert after.verify(found.name).ok == (found.state == "finished")
        assert next(after.newest()).step in (3, 4)
        ends.add((next(after.newest()).step, sum(found.state == "unfinished" for found in after.found())))
        after.own({"job": "j"})
        after.prune(2)
        assert all(found.state == "finished" for found in after.found())
        assert len(list(after.newest())) == 2
        if not killed:
            break
    assert number > 15
    assert ends >= {(3, 0), (3, 1), (4, 0), (4, 1)}

"""A folder of checkpoints under real faults: SIGKILL before every system call that changes something, two owners, readers that die, full disks."""

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import pytest
from ckptfolders import contents_of, dying_at, manifest_of, save, states, write

from ettrain.boost.checkpoint.folder import CheckpointFolder
from ettrain.errors import UsageError

CALLS = ("mkdir", "open", "replace", "unlink", "rmdir", "fsync", "close")


def killed_at(number, work):
    """Run `work` in a forked child that gets SIGKILL right before its `number`th call; whether it came to that."""
    pid = os.fork()
    if pid == 0:
        counted = dying_at(number)

        try:
            for name in CALLS:
                setattr(os, name, counted(getattr(os, name)))
            work()
        finally:
            os._exit(0)
    status = os.waitpid(pid, 0)[1]
    assert status in (0, signal.SIGKILL)
    return status != 0


def every_point(work):
    number = 1
    while killed_at(number, work):
        yield number
        number += 1


def test_killed_anywhere_in_a_save_there_is_a_whole_checkpoint_or_none(tmp_path):
    folder = CheckpointFolder(tmp_path / "c")
    first = save(folder, 1)
    ends = set()

    def work():
        other = CheckpointFolder(folder.address)
        with other.own({}):
            save(other, 2)

    points = 0
    for points in every_point(work):
        [*rest, last] = folder.found()
        assert last.name == first
        assert folder.verify(first).ok
        for found in rest:
            assert found.state in ("finished", "unfinished")
            assert folder.verify(found.name).ok == (found.state == "finished")
        ends.add(tuple(found.state for found in rest))
        again = CheckpointFolder(folder.address)
        with again.own({}):  # the dead one does not keep it
            again.prune(9)
            assert {found.state for found in folder.found()} <= {"finished"}
            for found in rest:
                if found.state == "finished":
                    again.discard(found.name)
    assert points > 15
    assert ends == {(), ("unfinished",), ("finished",)}


def test_killed_anywhere_in_a_removal_what_is_left_is_no_checkpoint_and_goes_the_next_time(tmp_path):
    base = CheckpointFolder(tmp_path / "base")
    for step in (1, 2, 3, 4):
        save(base, step)
    base.claim(5)
    base._let_go("step-00000005")
    half = 0
    number = 0
    while True:
        number += 1
        address = str(tmp_path / f"c{number}")
        shutil.copytree(base.address, address)
        folder = CheckpointFolder(address)

        def work(address=address):
            other = CheckpointFolder(address)
            other.own({})
            other.prune(2)

        if not killed_at(number, work):
            break
        for found in folder.found():
            assert folder.verify(found.name).ok == (found.state == "finished"), number
            half += found.state == "unfinished"
        assert [found.name for found in folder.newest()][:2] == ["step-00000004", "step-00000003"]
        with folder.own({}):
            folder.prune(2)
        assert states(folder) == {"step-00000004": "finished", "step-00000003": "finished"}
        shutil.rmtree(address)
    assert number > 20
    assert half > 10


OWNER = """
import os, subprocess, sys, time
from ettrain.boost.checkpoint.folder import CheckpointFolder
owner = CheckpointFolder(sys.argv[1]).own({"job": "first"})
pid = 0
if sys.argv[2] == "fork":
    pid = os.fork()
    if not pid:
        time.sleep(60)
        os._exit(0)
elif sys.argv[2] == "exec":
    pid = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], close_fds=False).pid
print(pid, flush=True)
time.sleep(60)
"""


def _is_refused(folder):
    try:
        folder.own({"job": "second"}).release()
    except UsageError:
        return True
    return False


@pytest.mark.parametrize("child", ["none", "fork", "exec"])
def test_a_second_job_is_refused_by_name_until_the_first_is_dead_whatever_its_children_do(tmp_path, child):
    process = subprocess.Popen([sys.executable, "-c", OWNER, tmp_path, child], stdout=subprocess.PIPE, text=True)
    left = int(process.stdout.readline())
    folder = CheckpointFolder(tmp_path)
    try:
        with pytest.raises(UsageError, match=f"job first is saving its checkpoints there .process {process.pid} on "):
            folder.own({"job": "second"})
        process.kill()
        process.wait()
        deadline = time.monotonic() + 10
        while child == "fork" and _is_refused(folder) and time.monotonic() < deadline:
            time.sleep(0.05)  # the child lets go of the lock when it first runs
        with folder.own({"job": "second"}), pytest.raises(UsageError, match=f"job second.*{os.getpid()}"):
            CheckpointFolder(tmp_path).own({"job": "third"})
    finally:
        process.kill()
        process.stdout.close()
        if left:
            os.kill(left, signal.SIGKILL)


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written: Not a directory"):
        CheckpointFolder(tmp_path / "file" / "ck").own({})


def test_a_forked_child_neither_frees_the_folder_nor_may_prune_it(tmp_path):
    folder = CheckpointFolder(tmp_path)
    with folder.own({"job": "parent"}) as owner:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                owner.release()
                folder.prune(1)
            except UsageError:
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        with pytest.raises(UsageError, match="job parent"):
            CheckpointFolder(tmp_path).own({})


READER = """
import sys, time
from ettrain.boost.checkpoint.folder import CheckpointFolder
with CheckpointFolder(sys.argv[1]).reading("step-00000001"):
    print("reading", flush=True)
    time.sleep(60)
"""


def test_a_reader_that_was_killed_keeps_nothing(tmp_path):
    folder = CheckpointFolder(tmp_path)
    for step in (1, 2):
        save(folder, step)
    process = subprocess.Popen([sys.executable, "-c", READER, tmp_path], stdout=subprocess.PIPE, text=True)
    process.stdout.readline()
    with folder.own({}):
        assert folder.prune(1) == []
        process.kill()
        process.wait()
        assert folder.prune(1) == ["step-00000001"]
    process.stdout.close()


def test_another_job_takes_over_an_object_store_and_the_first_one_notices(monkeypatch):
    address = "memory://takeover/ckpt"
    first, second = CheckpointFolder(address), CheckpointFolder(address)
    owner = first.own({"job": "first"})
    with pytest.raises(UsageError, match="job first is saving"):
        second.own({"job": "second"})
    CheckpointFolder(address).own({"job": "first"})  # an attempt after a SIGKILL
    owner.who["since_ns"] -= 2 * 3600 * 10**9
    owner._write()
    second.own({"job": "second"})
    name = first.claim(1)
    write(first, name, contents_of(1))
    with pytest.raises(UsageError, match="job second is saving"):
        first.commit(name, manifest_of(1, contents_of(1)))
    assert states(second) == {name: "unfinished"}


def test_who_may_only_read_an_object_store_reads(monkeypatch):
    folder = CheckpointFolder("memory://readonly/ckpt")
    name = save(folder, 1)

    def refused(*args, **kwargs):
        raise PermissionError("read only")

    reader = CheckpointFolder("memory://readonly/ckpt")
    monkeypatch.setattr(reader._storage.fs, "pipe_file", refused)
    with reader.reading(name):
        assert reader.verify(name).ok


def test_a_full_disk_commits_nothing_and_the_next_save_works(tmp_path):
    folder = CheckpointFolder(tmp_path)
    save(folder, 1)
    name = folder.claim(2)
    write(folder, name, contents_of(2))
    with _no_byte_more(), pytest.raises(OSError):
        folder.commit(name, manifest_of(2, contents_of(2)))
    assert states(folder) == {name: "unfinished", "step-00000001": "finished"}
    with _no_byte_more(), pytest.raises(OSError):
        folder.claim(3)
    assert sorted(name for name in os.listdir(tmp_path)) == ["step-00000001", "step-00000002"]
    folder.commit(name, manifest_of(2, contents_of(2)))
    assert folder.verify(name).ok


@contextlib.contextmanager
def _no_byte_more():
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


FULL = """
import os, sys
sys.path.insert(0, sys.argv[2])
from ckptfolders import *
folder = CheckpointFolder(sys.argv[1])
with folder.own({}):
    save(folder, 1)
    name = folder.claim(2)
    write(folder, name, contents_of(2))
    try:
        with open(folder.path(name) + "/fill", "wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
    except OSError:
        pass
    try:
        folder.commit(name, manifest_of(2, contents_of(2), more={"long": "x" * 20000}))
    except OSError as error:
        print(error.strerror, states(folder), folder.verify("step-00000001").ok)
    folder.discard(name)
    save(folder, 3)
    print(states(folder), folder.prune(1), folder.verify("step-00000003").ok)
"""


def test_a_file_system_that_is_really_full(tmp_path):
    inner = f'mount -t tmpfs -o size=128k none "{tmp_path}" && exec "{sys.executable}" -c "$0" "{tmp_path}" "{os.path.dirname(__file__)}"'
    command = ["unshare", "-m", "sh", "-c", inner, FULL]
    if (
        shutil.which("unshare") is None
        or subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", tmp_path], check=False, capture_output=True).returncode
    ):
        pytest.skip("this process may not mount")
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert told == [
        "No space left on device {'step-00000002': 'unfinished', 'step-00000001': 'finished'} True",
        "{'step-00000003': 'finished', 'step-00000001': 'finished'} ['step-00000001'] True",
    ]


def test_a_checkpoint_that_may_not_be_read_is_said_and_the_next_one_is_found():
    place = tempfile.mkdtemp()  # pytest's own folders let nobody else in
    folder = CheckpointFolder(place)
    for step in (1, 2, 3):
        save(folder, step)
    os.chmod(place, 0o755)
    os.chmod(folder.path("step-00000003"), 0)
    os.chmod(os.path.join(folder.path("step-00000002"), "__0_0.distcp"), 0)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            if os.getuid() == 0:
                os.setresuid(65534, 65534, 65534)
            found = folder.found()[0]
            assert (found.state, found.why) == ("damaged", "cannot be read: Permission denied")
            assert folder.verify("step-00000002").why == "cannot be read: Permission denied"
            assert [found.name for found in folder.newest() if folder.verify(found.name).ok] == ["step-00000001"]
            with folder.reading("step-00000001"):
                pass
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(pid, 0)[1]
    os.chmod(folder.path("step-00000003"), 0o755)
    shutil.rmtree(place)
    assert status == 0

"""A folder of checkpoints, on a file system and on an object store: what exists, what is whole, what may go."""

import os
import shutil
import subprocess
import sys
import uuid

import pytest
from ckptfolders import contents_of, manifest_of, save, states, write

from ettrain.boost.checkpoint.folder import CheckpointFolder, parse
from ettrain.errors import CheckpointInvalidError, UsageError


@pytest.fixture(params=["path", "memory"])
def address(request, tmp_path):
    return str(tmp_path / "ckpt") if request.param == "path" else f"memory://{uuid.uuid4()}/ckpt"


@pytest.fixture
def folder(address):
    return CheckpointFolder(address)


@pytest.fixture
def local(tmp_path):
    return CheckpointFolder(tmp_path / "ckpt")


def test_a_place_that_is_not_there_holds_nothing(folder):
    assert folder.found() == []
    assert list(folder.newest()) == []


def test_a_checkpoint_exists_once_it_is_committed(folder):
    name = folder.claim(120)
    assert name == "step-00000120"
    write(folder, name, contents_of(120))
    assert states(folder) == {name: "unfinished"}
    assert list(folder.newest()) == []
    folder.commit(name, manifest_of(120, contents_of(120), job="j"))
    [found] = folder.newest()
    assert (found.name, found.step, found.manifest.job, found.manifest.name) == (name, 120, "j", name)
    assert folder.verify(name).ok


def test_a_step_saved_again_gets_a_folder_of_its_own(folder):
    assert [save(folder, 7) for _ in range(12)][-2:] == ["step-00000007.10", "step-00000007.11"]
    assert [found.name for found in folder.newest()][:3] == ["step-00000007.11", "step-00000007.10", "step-00000007.9"]
    save(folder, 123_456_789)
    assert next(folder.newest()).step == 123_456_789


def test_a_name_below_a_newer_save_of_its_step_is_not_used_again(folder):
    save(folder, 7)
    save(folder, 7)
    folder.discard("step-00000007")
    assert folder.claim(7) == "step-00000007.2"


def test_a_file_that_bears_the_name_is_in_nobodys_way(local):
    os.makedirs(local.address)
    open(os.path.join(local.address, "step-00000007"), "w").close()
    assert local.claim(7) == "step-00000007.1"


def test_two_claims_at_once_never_get_one_name(local):
    code = "import sys; from ettrain.boost.checkpoint.folder import CheckpointFolder as F; f = F(sys.argv[1])\nfor i in range(50): print(f.claim(5))"
    running = [subprocess.Popen([sys.executable, "-c", code, local.address], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    names = [name for process in running for name in process.communicate()[0].split()]
    assert len(names) == len(set(names)) == 150


@pytest.mark.parametrize(
    "name", ["step-1", "step-000000120", "step-00000120.0", "step-00000120.01", "step-00000120.1.2", "step-0000012x", "last"]
)
def test_other_names_are_none_of_ours(name):
    assert parse(name) is None


def test_what_is_not_ours_is_left_alone(local):
    other = ["best", "step-00000001.tmp", "step-1", "events"]
    for name in other:
        os.makedirs(os.path.join(local.address, name))
    with local.own({}):
        for step in (1, 2, 3):
            save(local, step)
        local.prune(1)
    assert sorted(os.listdir(local.address)) == sorted([".owner", "step-00000003", *other])


def test_nothing_is_committed_that_lacks_a_file_or_a_byte(folder):
    name = folder.claim(3)
    contents = contents_of(3)
    missing = dict(list(contents.items())[1:])
    write(folder, name, missing)
    with pytest.raises(CheckpointInvalidError, match=r"__0_0.distcp is missing"):
        folder.commit(name, manifest_of(3, contents))
    write(folder, name, {**contents, ".metadata": b"short"})
    with pytest.raises(CheckpointInvalidError, match=r"\.metadata has 5 bytes, the manifest says"):
        folder.commit(name, manifest_of(3, contents))
    assert states(folder) == {name: "unfinished"}
    write(folder, name, contents)
    folder.commit(name, manifest_of(3, contents))
    with pytest.raises(UsageError, match="committed already"):
        folder.commit(name, manifest_of(3, contents))
    with pytest.raises(UsageError, match="cannot hold step 4"):
        folder.commit(folder.claim(5), manifest_of(4, contents_of(4)))


@pytest.mark.parametrize("file", ["__0_0.distcp", ".metadata", "rank-00000.extra"])
def test_a_flipped_bit_a_cut_and_a_missing_file_are_found_and_named(folder, file):
    name = save(folder, 9)
    good = contents_of(9)[file]
    flipped = bytes([good[0] ^ 1]) + good[1:]
    write(folder, name, {file: flipped})
    verdict = folder.verify(name)
    assert not verdict.ok
    assert verdict.why.startswith(f"{file} is damaged: its checksum is")
    assert folder.verify(name, deep=False).ok
    write(folder, name, {file: good[:-1]})
    assert folder.verify(name, deep=False).why.startswith(f"{file} has {len(good) - 1:,} bytes, the manifest says {len(good):,}")
    folder._storage.remove(name, file)
    assert folder.verify(name).why == f"{file} is missing"
    write(folder, name, {file: good})
    assert folder.verify(name).ok


def test_what_is_there_beside_the_checkpoint_is_named_and_harmless(folder):
    name = save(folder, 9)
    write(folder, name, {"notes.txt": b"mine", "z": b""})
    assert folder.verify(name).ok
    assert folder.verify(name).why == "notes.txt, z are not in the manifest"


def test_processes_can_share_the_reading(folder):
    name = save(folder, 9)
    total = folder.verify(name).bytes_read
    shares = [folder.verify(name, only=["__0_0.distcp", ".metadata"]), folder.verify(name, only=["__1_0.distcp", "rank-00000.extra"])]
    assert sum(verdict.bytes_read for verdict in shares) == total == sum(map(len, contents_of(9).values()))
    write(folder, name, {"__1_0.distcp": b"x" * len(contents_of(9)["__1_0.distcp"])})
    assert [folder.verify(name, only=[file]).ok for file in ("__0_0.distcp", "__1_0.distcp")] == [True, False]


def test_a_manifest_of_another_folder_is_told(folder):
    save(folder, 9)
    name = folder.claim(9)
    write(folder, name, {**contents_of(9), "manifest.json": folder._storage.read("step-00000009", "manifest.json")})
    assert states(folder)[name] == "damaged"
    assert folder.verify(name).why == "its manifest is that of step-00000009: was it copied or renamed?"
    assert [found.name for found in folder.newest()] == ["step-00000009"]


def test_a_damaged_manifest_is_no_checkpoint(folder):
    name = save(folder, 9)
    data = folder._storage.read(name, "manifest.json")
    write(folder, name, {"manifest.json": data[: len(data) // 2]})
    [found] = folder.found()
    assert (found.state, found.manifest) == ("damaged", None)
    assert "cut off or damaged" in found.why
    write(folder, name, {"manifest.json": data.replace(b'"step": 9', b'"step": 8')})
    assert "checksum does not fit" in folder.found()[0].why


def test_a_plain_dcp_checkpoint_is_told_apart_from_a_save_that_did_not_finish(local):
    os.makedirs(local.path("step-00000005"))
    write(local, "step-00000005", {".metadata": b"x", "__0_0.distcp": b"y"})
    write(local, local.claim(6), {".metadata": b"x"})
    assert states(local) == {"step-00000005": "foreign", "step-00000006": "unfinished"}
    assert "plain DCP checkpoint" in local.found()[1].why
    assert local.found()[0].begun["pid"] == os.getpid()
    with CheckpointFolder(local.address).own({}):
        pass
    pruner = CheckpointFolder(local.address)
    with pruner.own({}):
        assert pruner.prune(1) == []  # the save is still held by `local`
        local._let_go("step-00000006")
        assert pruner.prune(1) == ["step-00000006"]
    assert states(local) == {"step-00000005": "foreign"}


# ---- going back


def test_after_going_back_what_is_saved_since_is_the_newest(address):
    folder = CheckpointFolder(address)
    for step in (100, 150):
        save(folder, step)
    again = CheckpointFolder(address)
    again.continue_from("step-00000100")
    save(again, 110)
    assert [found.step for found in CheckpointFolder(address).newest()] == [110, 150, 100]
    third = CheckpointFolder(address)
    save(third, 120)  # the next attempt goes on from the newest
    assert [found.step for found in third.newest()] == [120, 110, 150, 100]
    with third.own({"job": "a"}):
        assert third.prune(2) == ["step-00000150", "step-00000100"]


def test_going_on_from_the_newest_or_from_nothing_is_no_going_back(folder):
    folder.continue_from("")
    save(folder, 10)
    folder.continue_from("step-00000010")
    save(folder, 20)
    assert [found.generation for found in folder.newest()] == [0, 0]
    folder.continue_from("")  # from the start, although there are some
    save(folder, 5)
    assert next(folder.newest()).step == 5
    assert folder.get("step-00000005").generation == 1


def test_who_does_not_say_what_it_goes_on_from_is_understood_by_its_steps(address):
    for step in (100, 150):
        save(CheckpointFolder(address), step)
    anew = CheckpointFolder(address)
    assert [save(anew, step) for step in (10, 20)]
    assert [(found.step, found.generation) for found in anew.newest()] == [(20, 1), (10, 1), (150, 0), (100, 0)]


# ---- retention


def test_the_newest_stay_and_the_rest_goes(folder):
    with folder.own({"job": "a"}):
        for step in (1, 2, 3, 4):
            save(folder, step)
        assert folder.prune(2) == ["step-00000002", "step-00000001"]
        assert list(states(folder)) == ["step-00000004", "step-00000003"]
        assert folder.prune(2) == []


def test_one_that_does_not_verify_does_not_count(folder):
    with folder.own({"job": "a"}):
        for step in (1, 2, 3, 4):
            save(folder, step)
        for step in (3, 4):
            write(folder, f"step-0000000{step}", {"__0_0.distcp": b"x" * len(contents_of(step)["__0_0.distcp"])})
        assert folder.prune(1) == ["step-00000001"]
        assert folder.prune(2) == []  # only one verifies: it stays, and so do the damaged ones
        assert set(states(folder)) == {"step-00000004", "step-00000003", "step-00000002"}


def test_the_last_one_that_verifies_is_never_removed(folder):
    with folder.own({"job": "a"}):
        save(folder, 1)
        for step in (2, 3):
            name = save(folder, step)
            folder._storage.remove(name, "__0_0.distcp")
        assert folder.prune(1) == []
        assert folder.verify("step-00000001").ok


def test_each_kept_one_is_read_once_and_not_at_all_when_vouched_for(folder):
    read = []
    chunks = folder._storage.chunks
    folder._storage.chunks = lambda name, file: read.append(name) or chunks(name, file)
    with folder.own({"job": "a"}):
        for step in (1, 2, 3):
            save(folder, step)
        folder.prune(2)
        assert sorted(set(read)) == ["step-00000002", "step-00000003"]
        read.clear()
        folder.vouch(save(folder, 4))
        folder.prune(2)
        folder.prune(1, deep=False)
        assert read == []


def test_one_that_is_read_stays_and_goes_the_next_time(address):
    folder, reader = CheckpointFolder(address), CheckpointFolder(address)
    with folder.own({"job": "a"}):
        for step in (1, 2, 3):
            save(folder, step)
        with reader.reading("step-00000001") as manifest:
            assert manifest.step == 1
            assert folder.prune(1) == ["step-00000002"]
            assert reader.verify("step-00000001").ok
        assert folder.prune(1) == ["step-00000001"]
        with pytest.raises(CheckpointInvalidError, match="removed meanwhile"), reader.reading("step-00000001"):
            pass


def test_spared_ones_stay(folder):
    with folder.own({"job": "a"}):
        for step in (1, 2, 3):
            save(folder, step)
        assert folder.prune(1, spare=["step-00000001"]) == ["step-00000002"]


def test_a_save_under_way_is_no_leftover(folder):
    with folder.own({"job": "a"}):
        name = folder.claim(5)
        assert folder.prune(1) == []
        folder.discard(name)
        assert folder.found() == []


def test_what_is_written_into_a_folder_while_it_is_removed_goes_the_next_time(local, monkeypatch):
    with local.own({}):
        name = local.claim(5)
        remove_folder = local._storage.remove_folder
        monkeypatch.setattr(local._storage, "remove_folder", lambda name: write(local, name, {"late": b"x"}) or remove_folder(name))
        with pytest.raises(OSError):
            local.discard(name)
        assert states(local) == {name: "unfinished"}
        monkeypatch.undo()
        assert local.prune(1) == [name]


def test_leftovers_of_an_earlier_owner_go(local):
    subprocess.run(
        [sys.executable, "-c", f"from ettrain.boost.checkpoint.folder import CheckpointFolder as F; F({local.address!r}).claim(5)"],
        check=True,
    )
    os.mkdir(os.path.join(local.address, "step-00000006"))  # killed between the folder and its mark
    with local.own({}):
        assert local.prune(3) == ["step-00000006", "step-00000005"]


def test_what_a_link_leads_to_is_left_alone(local, tmp_path):
    other = CheckpointFolder(tmp_path / "other")
    save(other, 1)
    os.makedirs(local.address)
    os.symlink(other.path("step-00000001"), local.path("step-00000001"))
    with local.own({}):
        for step in (2, 3):
            save(local, step)
        assert local.verify("step-00000001").ok
        assert local.prune(1) == ["step-00000002"]
        with pytest.raises(UsageError, match="link"):
            local.discard("step-00000001")
    assert other.verify("step-00000001").ok


def test_retention_needs_the_folder_and_a_number(folder):
    with pytest.raises(UsageError, match="call own"):
        folder.prune(1)
    with folder.own({"job": "a"}) as owner:
        with pytest.raises(UsageError, match="at least one"):
            folder.prune(0)
        owner.release()
        with pytest.raises(UsageError, match="call own"):
            folder.prune(1)


# ---- what cannot be


def test_a_name_is_no_way_out_of_the_folder(folder):
    for call in (folder.discard, folder.verify, lambda name: folder.reading(name).__enter__()):
        with pytest.raises(UsageError, match="not the name of a checkpoint"):
            call("../step-00000001")


def test_a_checkpoint_that_is_not_there_is_said_with_those_that_are(folder):
    save(folder, 4)
    with pytest.raises(UsageError, match=r"no checkpoint 'step-00000005' there. Newest: step-00000004"):
        folder.get("step-00000005")


def test_a_file_is_no_folder(tmp_path):
    path = tmp_path / "file"
    path.write_text("")
    with pytest.raises(UsageError, match="is not a folder"):
        CheckpointFolder(path)


def test_an_address_that_is_none_is_told():
    with pytest.raises(UsageError, match="no address of checkpoints"):
        CheckpointFolder("nosuch://bucket/x")


def test_an_address_of_files_is_a_path(tmp_path):
    assert CheckpointFolder(f"file://{tmp_path}").path("step-00000001") == str(tmp_path / "step-00000001")


def test_a_folder_moved_as_a_whole_stays_good(local, tmp_path):
    save(local, 3)
    shutil.move(local.address, tmp_path / "elsewhere")
    assert CheckpointFolder(tmp_path / "elsewhere").verify("step-00000003").ok

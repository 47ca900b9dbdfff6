"""A checkpoint from another party: nothing of it runs, and what is not whole is not read."""

import os
import pickle
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import MetadataIndex

from ettrain.boost.checkpoint import metadata, reading
from ettrain.errors import CheckpointInvalidError

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
CRIME = "import os; os.environ['ETT_TEST_CRIME'] = '1'"


class Evil:
    def __reduce__(self):
        return (exec, (CRIME,))


@pytest.fixture(autouse=True)
def no_crime(monkeypatch):
    monkeypatch.delenv("ETT_TEST_CRIME", raising=False)
    yield
    assert "ETT_TEST_CRIME" not in os.environ, "code of the checkpoint ran"


def state():
    return {"model": {"w": torch.arange(12.0).reshape(4, 3), "b": torch.ones(3)}, "epoch": 3, "groups": [{"lr": 0.1, "betas": (0.9, 0.99)}]}


@pytest.fixture
def folder(tmp_path):
    dcp.save(state(), checkpoint_id=tmp_path / "ck")
    return tmp_path / "ck"


def told(folder):
    return pickle.loads((folder / ".metadata").read_bytes())


def load(folder, wanted=None):
    wanted = (
        {"model": {"w": torch.zeros(4, 3), "b": torch.zeros(3)}, "epoch": 0, "groups": [{"lr": 0.0, "betas": (0.0, 0.0)}]}
        if wanted is None
        else wanted
    )
    reading.load(wanted, reading.reader_of(folder), no_dist=True)
    return wanted


def test_an_honest_checkpoint_reads_as_dcp_reads_it(folder):
    found = load(folder)
    assert torch.equal(found["model"]["w"], state()["model"]["w"])
    assert (found["epoch"], found["groups"]) == (3, state()["groups"])


def test_the_metadata_is_what_pickle_reads(folder):
    found = metadata.read((folder / ".metadata").read_bytes(), "ck")
    honest = told(folder)
    assert found.state_dict_metadata == honest.state_dict_metadata
    assert found.storage_data == honest.storage_data
    assert found.planner_data == honest.planner_data


def test_code_in_the_metadata_is_refused_and_not_run(folder):
    (folder / ".metadata").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(CheckpointInvalidError, match=r"ck: .metadata asks for builtins.exec.*nothing was run"):
        load(folder)


@pytest.mark.parametrize(
    "name",
    [
        "os.system",
        "torch.load",
        "builtins.getattr",
        "torch.distributed.checkpoint.metadata.os",
        "pathlib.Path.write_text",
        "torch.hub.load",
    ],
)
def test_no_other_name_is_looked_up(name):
    module, _, attribute = name.rpartition(".")
    for data in (
        b"c" + module.encode() + b"\n" + attribute.encode() + b"\n.",
        b"\x80\x04\x8c" + bytes([len(module)]) + module.encode() + b"\x8c" + bytes([len(attribute)]) + attribute.encode() + b"\x93.",
    ):
        with pytest.raises(CheckpointInvalidError, match="has no place there"):
            metadata.read(data, "ck")


def test_a_dotted_name_does_not_reach_through_a_type():
    with pytest.raises(CheckpointInvalidError, match="no place"):
        metadata.read(
            b"\x80\x04\x8c\x29torch.distributed.checkpoint.metadata\x8c\x11Metadata.__init__\x93.".replace(
                b"\x29", bytes([len("torch.distributed.checkpoint.metadata")])
            ),
            "ck",
        )


def test_a_pickle_that_sets_an_attribute_of_a_type_is_refused_and_undone():
    home = b"torch.distributed.checkpoint.metadata"
    data = b"c" + home + b"\nMetadata\n" + b"(N}V__repr__\nI1\ns" + b"tb."
    before = dcp.metadata.Metadata.__repr__
    with pytest.raises(CheckpointInvalidError, match="tries to change Metadata.__repr__"):
        metadata.read(data, "ck")
    assert dcp.metadata.Metadata.__repr__ is before


@pytest.mark.parametrize("cut", [0, 1, 10, 100, -1])
def test_damaged_metadata_is_said_to_be_damaged(folder, cut):
    data = (folder / ".metadata").read_bytes()
    with pytest.raises(CheckpointInvalidError, match="damaged"):
        metadata.read(data[:cut], "ck")


def test_metadata_that_is_something_else_is_refused():
    for data in (pickle.dumps({}), pickle.dumps(3), pickle.dumps(dcp.metadata.Metadata(state_dict_metadata={"a": 1}, storage_data={}))):
        with pytest.raises(CheckpointInvalidError, match="not the metadata of a checkpoint"):
            metadata.read(data, "ck")


def test_code_in_an_object_of_the_checkpoint_is_refused_and_not_run(folder):
    dcp.save({"model": {"w": torch.ones(2)}, "epoch": Evil()}, checkpoint_id=folder.with_name("evil"))
    with pytest.raises(CheckpointInvalidError, match=r"evil: epoch asks for .*exec: refused, nothing was run.*add_safe_globals"):
        load(folder.with_name("evil"), {"model": {"w": torch.zeros(2)}, "epoch": 0})


def test_a_file_outside_of_the_folder_is_not_read(folder):
    found = told(folder)
    for info in found.storage_data.values():
        info.relative_path = "../ck/__0_0.distcp"
    (folder / ".metadata").write_bytes(pickle.dumps(found))
    with pytest.raises(CheckpointInvalidError, match="outside of the checkpoint"):
        load(folder)


def test_a_missing_and_a_short_file_are_named(folder):
    os.truncate(folder / "__0_0.distcp", 100)
    with pytest.raises(CheckpointInvalidError, match=r"__0_0.distcp is short: 100 of \d+ bytes"):
        load(folder)
    (folder / "__0_0.distcp").unlink()
    with pytest.raises(CheckpointInvalidError, match="__0_0.distcp is missing"):
        load(folder)


def test_a_piece_that_was_never_written_is_named(folder):
    found = told(folder)
    del found.storage_data[MetadataIndex("model.w", (0, 0))]
    (folder / ".metadata").write_bytes(pickle.dumps(found))
    with pytest.raises(CheckpointInvalidError, match=r"nothing was written for the part of model.w at \[0, 0\]"):
        load(folder)


def test_metadata_of_one_ranks_part_is_refused(folder):
    found = told(folder)
    found.state_dict_metadata["model.w"].size = torch.Size([8, 3])
    (folder / ".metadata").write_bytes(pickle.dumps(found))
    with pytest.raises(CheckpointInvalidError, match="12 of the 24 elements of model.w"):
        load(folder)


def test_a_save_without_collectives_is_refused_by_its_name(tmp_path):
    (tmp_path / "ck").mkdir()
    (tmp_path / "ck" / "__0.metadata").write_bytes(b"x")
    with pytest.raises(CheckpointInvalidError, match="use_collectives=False"):
        load(tmp_path / "ck")


def test_an_unfinished_and_an_absent_checkpoint_are_told_apart(folder, tmp_path):
    (folder / ".metadata").unlink()
    with pytest.raises(CheckpointInvalidError, match="never finished"):
        load(folder)
    with pytest.raises(CheckpointInvalidError, match="no such checkpoint"):
        load(tmp_path / "nowhere")


def test_a_flipped_bit_in_the_data_is_an_error_of_the_checkpoint(folder):
    data = bytearray((folder / "__0_0.distcp").read_bytes())
    data[: len(data) // 2] = bytes(len(data) // 2)
    (folder / "__0_0.distcp").write_bytes(data)
    with pytest.raises(CheckpointInvalidError, match="rank 0 could not read it|damaged"):
        load(folder)


def test_a_key_that_is_not_there_is_an_error(folder):
    with pytest.raises(CheckpointInvalidError, match="model.other"):
        load(folder, {"model": {"other": torch.zeros(2)}})


def test_paths_are_read_as_names_only():
    found = pickle.dumps(
        dcp.metadata.Metadata(state_dict_metadata={}, storage_data={}, storage_meta=dcp.metadata.StorageMeta(checkpoint_id=Path("/x")))
    )
    assert metadata.read(found, "ck").storage_meta.checkpoint_id == PurePosixPath("/x")
    assert type(metadata.read(found, "ck").storage_meta.checkpoint_id) is PurePosixPath


def test_the_private_names_are_those_of_this_torch():
    from importlib import import_module

    for module, names in metadata.PRIVATE.items():
        for name in names:
            assert hasattr(import_module(module), name), f"{module}.{name}"


def test_a_checkpoint_at_an_address_is_read_by_the_same_rules(folder):
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.put(str(folder), "/read/ck", recursive=True)
    assert load("memory://read/ck")["epoch"] == 3
    with memory.open("/read/ck/.metadata", "wb") as file:
        file.write(pickle.dumps(Evil()))
    with pytest.raises(CheckpointInvalidError, match="nothing was run"):
        load("memory://read/ck")


PROGRAM = """
import sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.tensor import distribute_tensor, init_device_mesh, Shard
from ettrain.boost.checkpoint import reading
from ettrain.errors import CheckpointInvalidError
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
full = torch.arange(10.0).reshape(5, 2)
dcp.save({"model": {"w": distribute_tensor(full, mesh, [Shard(0)])}}, checkpoint_id=sys.argv[1])
state = {"model": {"w": distribute_tensor(torch.zeros(5, 2), mesh, [Shard(1)])}}
reading.load(state, reading.reader_of(sys.argv[1]))
assert torch.equal(state["model"]["w"].full_tensor(), full)
if dist.get_rank() == 1:
    reading.SafeReader._content = lambda self: b"nonsense"
try:
    reading.load(state, reading.reader_of(sys.argv[1]))
except CheckpointInvalidError as error:
    open(f"{sys.argv[1]}-{dist.get_rank()}.txt", "w").write(str(error))
dist.destroy_process_group()
"""


def test_ranks_load_resharded_and_all_hear_of_one_ranks_problem(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    words = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(tmp_path / "program.py"),
        str(tmp_path / "ck"),
    ]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
    assert ended.returncode == 0, ended.stderr
    for rank in range(2):
        assert "cannot be read, it is damaged" in (tmp_path / f"ck-{rank}.txt").read_text()
    found = {"model": {"w": torch.zeros(5, 2)}}
    reading.load(found, reading.reader_of(tmp_path / "ck"), no_dist=True)
    assert torch.equal(found["model"]["w"], torch.arange(10.0).reshape(5, 2))

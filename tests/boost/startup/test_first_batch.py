"""`ett.first_batch`: the same batches bit for bit, a batch to compile with, and what is learned for the next attempt."""

import dataclasses
import json
import random
import threading
import time
from collections import OrderedDict
from typing import NamedTuple

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from warmmodels import same

import ettrain as ett
from ettrain.boost.first import schema
from ettrain.boost.first.fill import UnfillableError, batch_from
from ettrain.boost.first.learned import Learned


class Rows(Dataset):
    """Draws in its workers, as augmenting datasets do."""

    def __len__(self):
        return 23

    def __getitem__(self, index):
        return torch.tensor(index), torch.rand(2)


class Slow(Rows):
    def __getitem__(self, index):
        if torch.utils.data.get_worker_info() is not None and index < 30:
            time.sleep(0.1)
        return super().__getitem__(index)


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.setenv("ETT_JOB_DIR", str(tmp_path / "job"))
    monkeypatch.delenv("RANK", raising=False)
    return tmp_path / "job"


def loader(workers, dataset=None, **more):
    return DataLoader(dataset or Rows(), batch_size=4, shuffle=True, num_workers=workers, **more)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_batches_and_the_random_numbers_are_those_of_the_loader_bit_for_bit(workers):
    passes = []
    for way in (lambda given: given, ett.first_batch):
        torch.manual_seed(11)
        random.seed(11)
        started = way(loader(workers))
        first, second = list(started), list(started)
        passes.append((first, second, torch.rand(3), random.random()))
    assert same(passes[0], passes[1])
    assert len(passes[0][0]) == 6


def test_asking_for_the_compile_batch_draws_nothing_the_program_sees():
    results = []
    for asks in (False, True):
        torch.manual_seed(11)
        started = ett.first_batch(loader(0))
        if asks:
            assert started.compile_batch[0].tolist() == [0, 1, 2, 3]
            assert started.source == "dataset"
        results.append((list(started), torch.rand(1)))
    assert same(results[0], results[1])


def test_the_first_batch_is_made_while_the_program_does_something_else():
    started = ett.first_batch(loader(1, Slow()))
    assert any(thread.name == "ettrain-first-batch" for thread in threading.enumerate())
    deadline = time.monotonic() + 30
    while started._outcome is None and time.monotonic() < deadline:
        time.sleep(0.02)
    begin = time.monotonic()
    iterator = iter(started)
    next(iterator)
    waited_first = time.monotonic() - begin
    assert waited_first < 0.2  # of 0.4 that it takes
    assert len(list(iterator)) == 5


def test_the_length_is_the_loaders():
    assert len(ett.first_batch(loader(0))) == 6


class Broken(Rows):
    def __getitem__(self, index):
        raise KeyError("no such row")


def test_what_the_pipeline_raises_is_raised_where_the_batch_is_asked_for():
    started = ett.first_batch(loader(0, Broken()), background=True)
    time.sleep(0.1)
    with pytest.raises(KeyError, match="no such row"):
        next(iter(started))
    assert started.compile_batch is None
    assert "no such row" in started.notes[0]


class Nothing(IterableDataset):
    def __iter__(self):
        return iter(())


def test_an_empty_loader_is_empty():
    assert list(ett.first_batch(DataLoader(Nothing()), background=True)) == []
    assert list(ett.first_batch([], background=True)) == []


def test_what_draws_in_this_process_is_not_taken_to_another_thread_unless_asked():
    names = []

    class Where(Rows):
        def __getitem__(self, index):
            names.append(threading.current_thread().name)
            return super().__getitem__(index)

    list(ett.first_batch(loader(0, Where())))
    assert set(names) == {"MainThread"}
    names.clear()
    started = ett.first_batch(loader(0, Where()), background=True)
    next(iter(started))
    assert set(names[:4]) == {"ettrain-first-batch"}


# ---- learning


def test_the_next_attempt_replays_dtypes_shapes_strides_and_ranges(job):
    ids = torch.randint(3, 9, (12, 5))
    data = TensorDataset(ids, torch.rand(12, 2, 3, dtype=torch.float64).transpose(1, 2), torch.rand(12) > 0.5)
    first = ett.first_batch(DataLoader(data, batch_size=4))
    real = next(iter(first))
    assert (job / "learned/batch.json").exists()

    again = ett.first_batch(DataLoader(data, batch_size=4))
    batch = again.compile_batch
    assert again.source == "schema" and type(batch) is type(real)
    assert [(t.dtype, t.shape, t.stride(), t.requires_grad) for t in batch] == [
        (t.dtype, t.shape, t.stride(), t.requires_grad) for t in real
    ]
    assert real[0].min() <= batch[0].min() and batch[0].max() <= real[0].max()
    assert not torch.equal(batch[1], real[1])


class Nested(NamedTuple):
    values: torch.Tensor
    offsets: torch.Tensor


@dataclasses.dataclass
class Item:
    name: str
    parts: list


BATCH = {
    "bag": Nested(torch.tensor([7, 7, 2, 9, 4]), torch.tensor([0, 2, 2, 5])),
    "item": Item("x", [torch.ones(2, requires_grad=True), (torch.zeros(3, dtype=torch.bool), None, 1.5)]),
    "ordered": OrderedDict(a=torch.ones(1, dtype=torch.bfloat16)),
}


def test_a_batch_of_any_structure_is_described_and_made_again():
    node = json.loads(json.dumps(schema.describe(BATCH)))
    made = batch_from(node)
    assert made["bag"].offsets.tolist() == [0, 2, 2, 5] and type(made["bag"]) is Nested
    assert made["item"].name == "x" and made["item"].parts[0].requires_grad and made["item"].parts[1][1:] == (None, 1.5)
    assert type(made["ordered"]) is OrderedDict
    assert schema.signature_of(made) == schema.signature_of(BATCH)
    assert len(list(schema.nodes_in(node))) == len(list(schema.tensors_in(BATCH)))


def test_long_offsets_keep_rising_from_the_first_value_to_the_last():
    offsets = torch.arange(0, 30_003, 3)
    made = batch_from(schema.describe([torch.zeros(30_000), offsets]))[1]
    assert made[0] == 0 and made[-1] == offsets[-1] and bool((made[1:] >= made[:-1]).all())
    torch.nn.functional.embedding_bag(torch.zeros(30_000, dtype=torch.int64), torch.ones(3, 2), made)


def test_a_class_that_the_program_does_not_have_is_not_imported():
    with pytest.raises(UnfillableError, match="no class colorsys:Nothing"):
        batch_from({"class": "colorsys:Nothing", "how": "positions", "items": []})


def test_a_real_batch_is_kept_where_it_is_asked_for(job):
    real = next(iter(ett.first_batch(loader(0), keep=True)))
    again = ett.first_batch(loader(0))
    assert same(again.compile_batch, real) and again.source == "kept"


def test_a_torn_or_foreign_file_is_as_good_as_none(job):
    next(iter(ett.first_batch(loader(0), keep=True)))
    (job / "learned/batch-rank-00000.pt").write_bytes(b"PK\x03\x04 torn")
    again = ett.first_batch(loader(0))
    assert again.compile_batch is not None and again.source == "schema"
    assert "cannot be read" in again.notes[0]
    (job / "learned/batch.json").write_text('{"version": 1, "batch": {"tensor": {"dtype": "evil"}}}')
    again = ett.first_batch(loader(0))
    assert again.compile_batch is not None and again.source == "dataset"
    (job / "learned/batch.json").write_text("{")
    assert ett.first_batch(loader(0)).compile_batch is not None


def test_what_the_user_makes_comes_first(job):
    next(iter(ett.first_batch(loader(0))))
    started = ett.first_batch(loader(0), make=lambda: "mine")
    assert (started.compile_batch, started.source) == ("mine", "make")


def test_a_batch_that_cannot_be_described_is_said_and_trained_on(job):
    started = ett.first_batch([object(), object()])
    assert len(list(started)) == 2
    assert "pass make=" in started.notes[0]
    assert not (job / "learned").exists()


def test_a_description_in_a_file_of_the_users_needs_no_job(tmp_path, monkeypatch):
    monkeypatch.delenv("ETT_JOB_DIR", raising=False)
    next(iter(ett.first_batch(loader(0), schema=tmp_path / "mine.json")))
    again = ett.first_batch(loader(0), schema=tmp_path / "mine.json")
    assert again.compile_batch is not None and again.source == "schema"


def test_dimensions_that_vary_are_learned_and_marked(job):
    sizes = [4, 4, 3]
    batches = [(torch.ones(size, 2), torch.ones(5)) for size in sizes]
    list(ett.first_batch(batches))
    (one, other) = schema.nodes_in(json.loads((job / "learned/batch.json").read_text())["batch"])
    assert (one["dynamic"], other["dynamic"], one["shape"]) == ([0], [], [4, 2])
    again = ett.first_batch(batches)
    assert again.compile_batch[0]._dynamo_weak_dynamic_indices == {0}
    assert not hasattr(again.compile_batch[1], "_dynamo_weak_dynamic_indices")
    written = (job / "learned/batch.json").stat().st_ino
    list(again)
    assert (job / "learned/batch.json").stat().st_ino == written  # known already


def test_only_the_first_batches_are_looked_at(job):
    batches = [torch.ones(4)] * 64 + [torch.ones(3)]
    assert len(list(ett.first_batch(batches))) == 65
    (node,) = schema.nodes_in(json.loads((job / "learned/batch.json").read_text())["batch"])
    assert node["dynamic"] == []


def test_ranks_share_a_description_and_one_that_differs_has_its_own(tmp_path):
    path = tmp_path / "batch.json"
    Learned(path, 0).write(schema.describe([torch.ones(4)]))
    Learned(path, 1).write(schema.describe([torch.zeros(4)]))
    assert [file.name for file in tmp_path.iterdir()] == ["batch.json"]
    Learned(path, 2).write(schema.describe([torch.ones(3)]))
    assert [list(schema.nodes_in(Learned(path, rank).read()))[0]["shape"] for rank in (0, 1, 2)] == [[4], [4], [3]]
    Learned(path, 2).write(schema.describe([torch.ones(4)]))
    assert [file.name for file in tmp_path.iterdir()] == ["batch.json"]


def test_a_folder_that_cannot_be_written_costs_the_training_nothing(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ETT_JOB_DIR", str(tmp_path / "file"))
    assert len(list(ett.first_batch(loader(0)))) == 6


# ---- compiling


@pytest.mark.parametrize("attempt_knows", [False, True])
def test_the_real_batch_is_not_compiled_for_again(job, attempt_knows):
    batches = [(torch.randint(0, 9, (size,)), torch.tensor([0, 2, size // 2])) for size in (12, 15, 9, 11)]
    model = torch.nn.EmbeddingBag(9, 4)
    counters = torch._dynamo.utils.counters["stats"]
    if attempt_knows:
        list(ett.first_batch(batches))
    torch._dynamo.reset()
    compiled = torch.compile(lambda ids, offsets: model(ids, offsets).tanh().sum(), backend="aot_eager")

    def step(batch):
        compiled(*batch).backward()

    started = ett.first_batch(batches, make=None if attempt_knows else (lambda: batches[0]))
    assert ett.warm_compile(step, started.compile_batch, model=model).graphs == 1
    before = counters["unique_graphs"]
    for number, batch in enumerate(started):
        step(batch)
        if number == 0 or attempt_knows:
            assert counters["unique_graphs"] == before
    assert (counters["unique_graphs"] == before) == attempt_knows


def test_forking_while_other_stages_run_is_said(capsys):
    start = ett.Startup()
    begun, forked = threading.Event(), threading.Event()

    @start.stage
    def model():
        begun.set()
        forked.wait(20)

    @start.stage(rng=True)
    def batches():
        begun.wait(20)
        started = ett.first_batch(loader(1))
        forked.set()
        return list(started)

    assert len(start.run().batches) == 6
    told = capsys.readouterr().err
    assert "forks its workers while stage 'model' runs" in told and "forkserver" in told

    @start.stage(rng=True)
    def later(model):
        return list(ett.first_batch(loader(1)))

    start._stages.pop("batches")
    start.run()
    assert "forks" not in capsys.readouterr().err

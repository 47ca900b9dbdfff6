"""A dataset in pieces: exact while nothing changes, and each sample once when ranks and workers do."""

import random
import re
from pathlib import Path

import feedcases as cases
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from ettrain.boost.feed import follow
from ettrain.errors import UsageError

SIZE = 61


def ids(batch):
    return [int(row[0]) for row in batch]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("lasting", [False, True])
def test_with_the_same_workers_a_run_goes_on_as_if_it_had_not_been_interrupted(workers, lasting):
    def make():
        return DataLoader(cases.InPieces(SIZE), 4, num_workers=workers, persistent_workers=lasting and workers > 0)

    wanted = cases.run(make, epochs=2)[0]
    assert sorted(sample for entry in wanted[:17] if entry[0] != "end of epoch" for sample in ids(entry[0])) == list(range(SIZE))
    for stop in (5, 16, 25):
        log, state, rng = cases.run(make, epochs=2, stop=stop)
        assert log + cases.run(make, epochs=2, states=[state], rng=rng)[0] == wanted, stop


def ranks(world, workers, batch=3):
    return [follow(DataLoader(cases.InPieces(SIZE), batch, num_workers=workers), rank=rank, world=world) for rank in range(world)]


def life(feeds, states, steps):
    """Some steps of all ranks that still have batches; the samples of them, and the states."""
    for feed in feeds:
        if states is not None:
            feed.load(states)
    iterators, seen = [iter(feed) for feed in feeds], []
    for _ in range(steps):
        batches = [next(iterator, None) for iterator in iterators]
        seen += [sample for batch in batches if batch is not None for sample in ids(batch)]
    return seen, [cases.through_file(feed.state()) for feed in feeds]


def test_two_ranks_then_one_then_three_train_each_sample_once():
    done, states = [], None
    for world, workers, steps in ((2, 0, 4), (1, 0, 5), (3, 0, 1), (3, 0, 100)):
        seen, states = life(ranks(world, workers), states, steps)
        done += seen
    assert sorted(done) == list(range(SIZE))


def test_workers_may_change_as_well():
    done, states = [], None
    for world, workers, steps in ((1, 2, 3), (2, 1, 2), (1, 0, 100)):
        seen, states = life(ranks(world, workers), states, steps)
        done += seen
    assert sorted(done) == list(range(SIZE))


def test_many_random_changes():
    for seed in range(40):
        chance = random.Random(seed)
        done, states, over = [], None, False
        while not over:
            steps = chance.randint(0, 8)
            seen, states = life(ranks(chance.choice((1, 2, 3, 5)), 0, chance.choice((1, 3, 5))), states, steps)
            done += seen
            over = len(done) >= SIZE
        assert sorted(done) == list(range(SIZE)), seed


def test_another_number_of_pieces_in_the_middle_of_an_epoch_is_refused():
    _, states = life(ranks(1, 0), None, 2)
    with pytest.raises(UsageError, match="the dataset is in 5 pieces, and was in 7 when the checkpoint was written"):
        follow(DataLoader(cases.InPieces(SIZE, 5), 4), rank=0, world=1).load(states)


def test_a_rank_that_had_finished_the_epoch_waits_for_the_others():
    feeds = ranks(2, 0, batch=5)  # four pieces of seven, and three
    seen, states = life(feeds, None, 7)
    assert [(state["epoch"], state["begun"]) for state in states] == [(0, True), (1, False)]
    again = ranks(2, 0, batch=5)
    more, states = life(again, states, 100)
    assert sorted(seen + more) == list(range(SIZE))
    assert [feed.epoch for feed in again] == [1, 1]


def test_pieces_that_cannot_tell_where_they_stand_are_refused():
    class Blind(cases.InPieces):
        def piece(self, number):
            return iter(range(number))

    with pytest.raises(UsageError, match="cannot tell where it stands"):
        follow(DataLoader(Blind(9), 4), rank=0, world=1)


def test_the_examples_of_the_docs_are_exact():
    text = (Path(__file__).resolve().parents[3] / "docs/data.md").read_text()
    lines, shards = re.findall(r"```python\n(class .*?)```", text, flags=re.DOTALL)
    files = {f"file-{number}": [torch.tensor([10 * number + line]) for line in range(number + 3)] for number in range(5)}
    names = {"IterableDataset": IterableDataset, "get_worker_info": get_worker_info, "read": lambda file, start: iter(files[file][start:])}
    exec(lines, names)
    names["Shard"] = lambda number: names["Lines"]([f"file-{number}"])
    exec(shards.replace("256", "5"), names)
    everything = sorted(int(line) for file in files.values() for line in file)
    for make in (lambda: names["Lines"](list(files)), names["Shards"]):
        for stop in range(9):
            feed = follow(DataLoader(make(), 3), rank=0, world=1)
            seen, states = life([feed], None, stop)
            more, states = life([follow(DataLoader(make(), 3), rank=0, world=1)], states, 100)
            assert sorted(seen + more) == everything
            assert states[0]["epoch"] == 1

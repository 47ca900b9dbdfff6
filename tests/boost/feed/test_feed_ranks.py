"""Several ranks, whose number changes: every sample once, and no rank without a batch while others have one."""

import itertools
import random

import feedcases as cases
import pytest
from torch.utils.data import BatchSampler, DataLoader
from torch.utils.data.distributed import DistributedSampler

from ettrain.boost.feed import follow
from ettrain.errors import UsageError


def feeds(world, size, batch, *, drop_last=False, **sampler):
    samplers = [DistributedSampler(range(size), world, rank, **sampler) for rank in range(world)]
    return [follow(DataLoader(cases.Ids(size), batch, sampler=each, drop_last=drop_last), rank=rank, world=world) for rank, each in enumerate(samplers)]


def resumed(states, feeds_):
    for feed in feeds_:
        feed.load(states)
    return feeds_


def train(feeds_, steps=None):
    """All ranks in step; returns the samples of each step, and the states."""
    iterators, trained = [iter(feed) for feed in feeds_], []
    while steps is None or len(trained) < steps:
        batches = [next(iterator, None) for iterator in iterators]
        if any(batch is None for batch in batches):
            assert all(batch is None for batch in batches), "a rank has no batch while others have one"
            break
        trained.append([batch.tolist() for batch in batches])
    return trained, [cases.through_file(feed.state()) for feed in feeds_]


def flat(trained):
    return [sample for step in trained for batch in step for sample in batch]


def test_without_padding_the_batches_are_those_of_torchs_own_sampler():
    for size, world, batch, drop_last in ((24, 2, 5, False), (24, 3, 5, True), (25, 5, 2, False), (8, 2, 4, False)):
        for shuffle in (True, False):
            ours = [[batch.tolist() for batch in feed] for feed in feeds(world, size, batch, shuffle=shuffle, seed=4, drop_last=drop_last)]
            theirs = [
                [batch.tolist() for batch in DataLoader(cases.Ids(size), batch, sampler=DistributedSampler(range(size), world, rank, shuffle, 4), drop_last=drop_last)]
                for rank in range(world)
            ]
            assert ours == theirs


def test_with_drop_last_of_the_sampler_they_are_in_any_case():
    for size, world in ((23, 2), (23, 3), (23, 4)):
        for rank in range(world):
            sampler = DistributedSampler(range(size), world, rank, drop_last=True)
            loader = DataLoader(cases.Ids(size), 4, sampler=sampler)
            assert [batch.tolist() for batch in follow(loader, rank=rank, world=world)] == [batch.tolist() for batch in loader]


def test_where_torchs_sampler_pads_each_sample_is_trained_once():
    for size, world, batch in itertools.product((5, 7, 13, 23), (2, 3, 4), (1, 2, 3, 5)):
        trained, _ = train(feeds(world, size, batch))
        assert sorted(flat(trained)) == list(range(size)), (size, world, batch)


def test_the_padding_that_is_left_out_is_told():
    assert feeds(4, 22, 3)[0].summary() == {"epoch": 0, "batches": 0, "samples": 0, "padding_left_out": 2}
    assert feeds(4, 24, 3)[0].summary() == {"epoch": 0, "batches": 0, "samples": 0}


def test_all_small_changes_of_the_number_of_ranks_at_any_step():
    """Two, then one, then three ranks, with other batch sizes; what is too little for three is trained at the head of the next epoch."""
    for size, first, second in itertools.product((6, 11, 13), range(3), range(4)):
        one, states = train(feeds(2, size, 2), first)
        two, states = train(resumed(states, feeds(1, size, 3)), second)
        three, states = train(resumed(states, feeds(3, size, 2))) if states[0]["epoch"] == 0 else ([], states)
        done = flat(one) + flat(two) + flat(three)
        left = size - len(done)
        if states[0]["epoch"] == 1 and left:
            assert left < 3
            following, _ = train(resumed(states, feeds(3, size, 2)))
            assert len(flat(following)) == size + left
            done += [sample for sample in range(size) for _ in range(flat(following).count(sample) - 1)]
        assert sorted(done) == list(range(size)), (size, first, second)


def test_many_random_lives_over_several_epochs():
    chance = random.Random(5)
    for _ in range(30):
        size, counts, states, epochs = chance.randint(7, 40), {}, None, 3
        epoch = 0
        while epoch < epochs:
            world = chance.choice((1, 2, 3))
            ranks = feeds(world, size, chance.choice((1, 2, 4)))
            if states is not None:
                resumed(states, ranks)
            epoch = ranks[0].epoch
            if epoch >= epochs:
                break
            trained, states = train(ranks, chance.randint(0, 12))
            for sample in flat(trained):
                counts[sample] = counts.get(sample, 0) + 1
            epoch = states[0]["epoch"]
        led = len(states[0]["plan"]["lead"])
        assert sum(counts.values()) == epochs * size - led
        assert all(epochs - 1 <= counts.get(sample, 0) <= epochs for sample in range(size))
        assert sum(counts.get(sample, 0) == epochs - 1 for sample in range(size)) == led


def test_the_usual_program_has_no_distributed_sampler_on_one_rank():
    def program(world):
        samplers = [DistributedSampler(range(23), world, rank) if world > 1 else None for rank in range(world)]
        loaders = [DataLoader(cases.Ids(23), 3, sampler=sampler, shuffle=sampler is None) for sampler in samplers]
        return [follow(loader, rank=rank, world=world) for rank, loader in enumerate(loaders)]

    for worlds in ((2, 1, 3), (1, 3, 1)):
        states, done = None, []
        for world, steps in zip(worlds, (2, 2, None), strict=True):
            ranks = program(world) if states is None else resumed(states, program(world))
            trained, states = train(ranks, steps)
            done += flat(trained)
        assert sorted(done) == list(range(23))


def test_it_is_said_that_an_epoch_is_finished_in_the_order_it_began_with(capsys):
    _, states = train(feeds(2, 23, 3, seed=1), 2)
    resumed(states, feeds(2, 23, 3, seed=2))
    told = capsys.readouterr().err
    assert told.count("ettrain: follow:") == 1, "by one rank"
    assert "(distributed, shuffled with seed 1); the loader's (distributed, shuffled with seed 2) begins with the next one" in told


def test_a_plain_loader_on_several_ranks_is_split_when_that_is_said():
    def ranks(world, **told):
        return [follow(DataLoader(cases.Ids(23), 3, shuffle=True), rank=rank, world=world, **told) for rank in range(world)]

    trained, states = train(ranks(2, seed=7), 2)
    more, _ = train(resumed(states, ranks(3, split=True, seed=7)))
    assert sorted(flat(trained) + flat(more)) == list(range(23))
    like_torch = [list(DistributedSampler(range(23), 1, 0, seed=7))[:6][rank::2] for rank in range(2)]
    assert trained[0] == like_torch


def test_a_sampler_of_the_programs_own_is_split_when_that_is_said():
    ranks = [follow(DataLoader(cases.Ids(23), 3, sampler=cases.EpochSampler(23)), rank=rank, world=2, split=True) for rank in range(2)]
    trained, states = train(ranks, 2)
    alone = [follow(DataLoader(cases.Ids(23), 3, sampler=cases.EpochSampler(23)), rank=0, world=1)]
    more, _ = train(resumed(states, alone))
    assert sorted(flat(trained) + flat(more)) == list(range(23))


def test_each_rank_may_have_data_of_its_own():
    def ranks(world):
        return [follow(DataLoader(cases.Ids(10 + rank), 3, shuffle=True), rank=rank, world=world, split=False) for rank in range(world)]

    both = ranks(2)
    iterators = [iter(feed) for feed in both]
    seen = [[*next(iterator).tolist(), *next(iterator).tolist()] for iterator in iterators]
    states = [feed.state() for feed in both]
    for rank, feed in enumerate(resumed(states, ranks(2))):
        seen[rank] += [sample for batch in feed for sample in batch.tolist()]
        assert sorted(seen[rank]) == list(range(10 + rank))
    with pytest.raises(UsageError, match="of 2 ranks in the middle of an epoch, this job has 3, and each rank follows an order of its own"):
        ranks(3)[0].load(states)


def test_ranks_that_share_their_data_go_by_the_samplers_replicas():
    """Four ranks, two of which have the same data each, as in tensor parallelism."""
    ranks = [follow(DataLoader(cases.Ids(12), 2, sampler=DistributedSampler(range(12), 2, rank // 2)), rank=rank, world=4) for rank in range(4)]
    trained, _ = train(ranks)
    assert all(step[0] == step[1] and step[2] == step[3] for step in trained)
    assert sorted(flat([step[::2] for step in trained])) == list(range(12))


def test_torchs_batch_sampler_over_its_distributed_one_may_change_its_ranks():
    def ranks(world):
        samplers = [BatchSampler(DistributedSampler(range(23), world, rank), 3, drop_last=False) for rank in range(world)]
        return [follow(DataLoader(cases.Ids(23), batch_sampler=sampler), rank=rank, world=world) for rank, sampler in enumerate(samplers)]

    one, states = train(ranks(2), 2)
    two, _ = train(resumed(states, ranks(3)))
    assert sorted(flat(one) + flat(two)) == list(range(23))


def test_states_of_different_steps_are_refused():
    ranks = feeds(2, 23, 3)
    iterators = [iter(feed) for feed in ranks]
    for iterator in (*iterators, iterators[1]):
        next(iterator)
    with pytest.raises(UsageError, match="rank 0 of the checkpoint stands at sample 6 of epoch 0, rank 1 at sample 12 of epoch 0: .* not of the same step"):
        resumed([feed.state() for feed in ranks], feeds(2, 23, 3))


def test_ranks_that_had_different_orders_are_found_out():
    ranks = [follow(DataLoader(cases.Ids(24), 3, sampler=DistributedSampler(range(24), 2, rank, seed=rank)), rank=rank, world=2) for rank in range(2)]
    _, states = train(ranks, 1)
    with pytest.raises(UsageError, match="rank 0 and rank 1 of the checkpoint had different orders of the epoch"):
        resumed(states, feeds(2, 24, 3))


def test_workers_and_ranks_may_both_change():
    states, done = None, []
    for world, workers, steps in ((2, 2, 2), (1, 0, 2), (3, 1, None)):
        samplers = [DistributedSampler(range(29), world, rank) for rank in range(world)]
        ranks = [follow(DataLoader(cases.Ids(29), 3, sampler=each, num_workers=workers), rank=rank, world=world) for rank, each in enumerate(samplers)]
        trained, states = train(ranks if states is None else resumed(states, ranks), steps)
        done += flat(trained)
    assert sorted(done) == list(range(29))

"""What cannot be kept exactly is refused: what, where, and what to do."""

import feedcases as cases
import pytest
from torch.utils.data import DataLoader, RandomSampler
from torch.utils.data.distributed import DistributedSampler

import ettrain as ett
from ettrain.boost.feed import follow
from ettrain.errors import UsageError


class Unsized(cases.EpochSampler):
    __len__ = None


class OwnIteration(DataLoader):
    def __iter__(self):
        for batch in super().__iter__():
            yield batch + 1


class Named(DataLoader):
    """A kind of its own that changes nothing of the iteration."""


def refused(loader, match, *, rank=0, world=1, **told):
    with pytest.raises(UsageError, match=match):
        follow(loader, rank=rank, world=world, **told)


def under_way(make, batches=2):
    feed = follow(make(), rank=0, world=1)
    iterator = iter(feed)
    for _ in range(batches):
        next(iterator)
    return cases.through_file(feed.state())


def test_a_loader_of_several_ranks_must_say_whose_data_it_has():
    loader = DataLoader(cases.Ids(20), 4, shuffle=True)
    refused(loader, r"rank 1 of 2 has a RandomSampler: nothing says whether .*DistributedSampler\(dataset\), or pass seed=.*split=False", rank=1, world=2)
    refused(DataLoader(cases.Ids(20), 4, sampler=cases.EpochSampler(20)), "rank 0 of 2 has a EpochSampler", world=2)
    refused(DataLoader(cases.Ids(20), batch_sampler=cases.Buckets(20)), r"Buckets cannot be split over 2 ranks.*split=False", world=2, split=True)


def test_ranks_that_would_draw_different_orders_are_refused():
    feed = follow(DataLoader(cases.Ids(20), 4, sampler=cases.DrawingSampler(20)), rank=0, world=2, split=True)
    with pytest.raises(UsageError, match="DrawingSampler draws from the global random generators, so each rank would have an order of its own"):
        next(iter(feed))


def test_a_sampler_without_length_and_state_is_refused():
    refused(DataLoader(cases.Ids(20), 4, sampler=Unsized(20)), r"Unsized has neither a length nor a state.*Give it __len__, or state_dict\(\)")


def test_batches_in_the_order_of_the_workers_speed_are_refused():
    refused(DataLoader(cases.Ids(20), 4, num_workers=2, in_order=False), "in_order=False")


def test_a_loader_with_an_iteration_of_its_own_is_refused_and_one_without_is_not():
    refused(OwnIteration(cases.Ids(20), 4), "OwnIteration is not iterated over as torch's DataLoader is")
    refused([1, 2], "list is not iterated over")
    assert len(list(follow(Named(cases.Ids(20), 4), rank=0, world=1))) == 5


def test_too_few_samples_for_the_ranks_are_refused():
    refused(DataLoader(cases.Ids(2), 4, sampler=DistributedSampler(range(2), 3, 0)), "2 samples are too few for 3 ranks", world=3)
    refused(DataLoader(cases.Ids(7), None, sampler=DistributedSampler(range(7), 3, 0)), "leave 2 of 3 ranks without a last one", world=3)


def test_a_loader_that_first_batch_has_started_is_refused_and_a_feed_may_be_given_to_it():
    refused(ett.first_batch(DataLoader(cases.Ids(20), 4)), "ett.first_batch has started this loader already")
    feed = follow(DataLoader(cases.Ids(20), 4), rank=0, world=1)
    assert follow(feed, rank=0, world=1) is feed
    assert [batch.tolist() for batch in ett.first_batch(feed)] == [list(range(at, at + 4)) for at in range(0, 20, 4)]
    assert feed.epoch == 1


def test_a_dataset_of_another_length_in_the_middle_of_an_epoch_is_refused():
    state = under_way(lambda: DataLoader(cases.Ids(20), 4, shuffle=True))
    with pytest.raises(UsageError, match="the dataset has 24 samples, and had 20 when the checkpoint was written in the middle of an epoch"):
        follow(DataLoader(cases.Ids(24), 4, shuffle=True), rank=0, world=1).load([state])


def test_between_two_epochs_the_dataset_may_grow():
    feed = follow(DataLoader(cases.Ids(20), 4, shuffle=True), rank=0, world=1)
    assert len(list(feed)) == 5
    other = follow(DataLoader(cases.Ids(24), 4, shuffle=True), rank=0, world=1)
    other.load([feed.state()])
    assert sorted(sample for batch in other for sample in batch.tolist()) == list(range(24))


def test_a_sampler_that_does_not_repeat_itself_is_found_out():
    state = under_way(lambda: DataLoader(cases.Ids(20), 4, sampler=cases.ForgetfulSampler(20, 1)))
    feed = follow(DataLoader(cases.Ids(20), 4, sampler=cases.ForgetfulSampler(20, 2)), rank=0, world=1)
    feed.load([state])
    with pytest.raises(UsageError, match=r"ForgetfulSampler gave another order now \(20 entries\) than when the checkpoint was written"):
        next(iter(feed))


def test_a_state_of_another_kind_of_loader_or_version_is_refused():
    state = under_way(lambda: DataLoader(cases.Ids(20), 4))
    with pytest.raises(UsageError, match="has the position of a map-style dataset, and this loader is an iterable dataset"):
        follow(DataLoader(cases.Stream(20), 4), rank=0, world=1).load([state])
    with pytest.raises(UsageError, match="has the position of another kind of sampler"):
        follow(DataLoader(cases.Ids(20), 4, sampler=cases.StateSampler(20)), rank=0, world=1).load([state])
    with pytest.raises(UsageError, match="a data position of version 99; this ettrain knows 1"):
        follow(DataLoader(cases.Ids(20), 4), rank=0, world=1).load([state | {"version": 99}])
    with pytest.raises(UsageError, match="there is no state to go on from"):
        follow(DataLoader(cases.Ids(20), 4), rank=0, world=1).load([])


def test_an_error_of_the_dataset_leaves_the_position_before_it():
    dataset = cases.Ids(20)
    feed = follow(DataLoader(dataset, 4), rank=0, world=1)
    iterator = iter(feed)
    next(iterator)
    dataset.size = 5
    with pytest.raises(IndexError):
        next(iterator)
    dataset.size = 20
    assert next(iter(feed)).tolist() == [4, 5, 6, 7]


def test_other_samplers_of_torch_are_no_reason_to_refuse():
    feed = follow(DataLoader(cases.Ids(20), 4, sampler=RandomSampler(range(20), replacement=True)), rank=0, world=1)
    assert sum(len(batch) for batch in feed) == 20

"""Going on costs the same wherever the epoch was interrupted: nothing is read again."""

import time

import feedcases as cases
import pytest
from torch.utils.data import DataLoader

from ettrain.boost.feed import follow


def resumed_at(make, batches):
    feed = follow(make(), rank=0, world=1)
    iterator = iter(feed)
    for _ in range(batches):
        next(iterator)
    loader = make()
    other = follow(loader, rank=0, world=1)
    other.load([cases.through_file(feed.state())])
    return loader, other


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(cases.Ids(1000), 4, shuffle=True),
        lambda: DataLoader(cases.Ids(1000), 4, sampler=cases.EpochSampler(1000)),
        lambda: DataLoader(cases.Ids(1000), batch_sampler=cases.Buckets(1000)),
        lambda: DataLoader(cases.Stream(1000), 4),
    ],
)
def test_no_sample_is_read_that_is_not_trained(make):
    loader, feed = resumed_at(make, 100)
    batch = next(iter(feed))
    assert loader.dataset.asked == len(batch)


def test_the_hundred_thousandth_batch_of_a_million_samples_is_found_as_fast_as_the_tenth():
    def make():
        return DataLoader(cases.Ids(1_000_000), 8, shuffle=True)

    feed = follow(make(), rank=0, world=1)
    next(iter(feed))
    state = feed.state()
    took = {10: [], 100_000: []}
    for batches in (10, 100_000, 10, 100_000, 10, 100_000):
        other = follow(make(), rank=0, world=1)
        other.load([state | {"batches": batches, "plan": state["plan"] | {"done": 8 * batches}}])
        begin = time.perf_counter()
        next(iter(other))
        took[batches].append(time.perf_counter() - begin)
    assert min(took[100_000]) < 2 * min(took[10])


def test_the_position_is_taken_in_less_time_than_a_batch_is_fetched():
    feed = follow(DataLoader(cases.Ids(10_000), 16, shuffle=True), rank=0, world=1)
    iterator = iter(feed)
    next(iterator)
    feed.state()
    fetched, taken = [], []
    for _ in range(200):
        begin = time.perf_counter()
        next(iterator)
        middle = time.perf_counter()
        feed.state()
        fetched.append(middle - begin)
        taken.append(time.perf_counter() - middle)
    assert sorted(taken)[100] < sorted(fetched)[100]

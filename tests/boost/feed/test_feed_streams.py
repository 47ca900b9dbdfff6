"""Iterable datasets: exact from the state of the dataset in each worker, after the batch that was handed out."""

import feedcases as cases
import pytest
from torch.utils.data import DataLoader

from ettrain.boost.feed import follow
from ettrain.errors import UsageError

CASES = {
    "in this process": lambda: DataLoader(cases.Stream(23, noisy=True), 4),
    "single samples": lambda: DataLoader(cases.Stream(9, noisy=True), batch_size=None),
    "drop_last": lambda: DataLoader(cases.Stream(23, noisy=True), 4, drop_last=True),
    "an iterator with a state": lambda: DataLoader(cases.IteratorStream(23), 4),
    "two workers": lambda: DataLoader(cases.Stream(23, noisy=True), 4, num_workers=2),
    "workers of which one has less": lambda: DataLoader(cases.Stream(29, noisy=True, uneven=True), 2, num_workers=2, prefetch_factor=3),
    "persistent workers": lambda: DataLoader(cases.Stream(23, noisy=True), 4, num_workers=2, persistent_workers=True),
    "single samples of workers": lambda: DataLoader(cases.Stream(7, noisy=True), batch_size=None, num_workers=2),
    "iterators in workers": lambda: DataLoader(cases.IteratorStream(23), 4, num_workers=2),
    "pieces set by worker_init_fn": lambda: DataLoader(cases.Piece(), 4, num_workers=2, worker_init_fn=cases.set_piece),
}


@pytest.mark.parametrize("name", CASES)
def test_a_stream_interrupted_after_any_batch_goes_on_as_if_it_had_not_been(name):
    make = CASES[name]
    wanted = cases.plain_run(make, epochs=2)
    assert cases.run(make, epochs=2)[0] == wanted
    batches = [number + 1 for number, entry in enumerate(wanted) if entry[0] != "end of epoch"]
    half = len(batches) // 2
    stops = batches if make().num_workers == 0 else [batches[half - 2], batches[half - 1], batches[half]]
    for stop in stops:
        log, state, rng = cases.run(make, epochs=2, stop=stop)
        assert log + cases.run(make, epochs=2, states=[state], rng=rng)[0] == wanted, stop


@pytest.mark.parametrize("name", ["in this process", "an iterator with a state", "two workers", "persistent workers"])
def test_a_checkpoint_between_two_epochs_goes_on_with_the_next(name):
    make = CASES[name]
    wanted = cases.plain_run(make, epochs=2)
    log, state, rng = cases.run(make, epochs=1)
    assert log + cases.run(make, epochs=2, states=[state], rng=rng)[0] == wanted


def test_three_workers_interrupted_in_every_place_of_a_round():
    def make():
        with pytest.warns(UserWarning, match="suggested max"):
            return DataLoader(cases.Stream(31, uneven=True), 2, num_workers=3)

    with pytest.warns(UserWarning, match="suggested max"):
        wanted = cases.plain_run(make, epochs=1)
        for stop in range(4, 7):
            log, state, rng = cases.run(make, epochs=1, stop=stop)
            assert log + cases.run(make, epochs=1, states=[state], rng=rng)[0] == wanted, stop


def test_a_dataset_that_cannot_tell_where_it_stands_is_refused():
    for dataset in (cases.Stateless(), cases.Endless()):
        with pytest.raises(UsageError, match=r"iterable dataset that cannot tell where it stands.*state_dict\(\) and load_state_dict\(\)"):
            follow(DataLoader(dataset, 4), rank=0, world=1)


def test_other_workers_or_ranks_in_the_middle_of_an_epoch_are_refused():
    feed = follow(CASES["two workers"](), rank=0, world=1)
    next(iter(feed))
    with pytest.raises(UsageError, match="of 2 workers in the middle of an epoch, this loader has 0.*Resume with num_workers=2"):
        follow(CASES["in this process"](), rank=0, world=1).load([feed.state()])
    with pytest.raises(UsageError, match="of 1 ranks in the middle of an epoch, this job has 2, and its dataset keeps a state on each rank"):
        follow(CASES["two workers"](), rank=0, world=2).load([feed.state()])


def test_between_two_epochs_their_number_may_change():
    feed = follow(CASES["two workers"](), rank=0, world=1)
    assert len(list(feed)) == 6
    other = follow(CASES["in this process"](), rank=0, world=1)
    other.load([feed.state()])
    assert sorted(int(row[0]) for batch in other for row in batch) == list(range(23))
    assert other.epoch == 2


def test_a_state_that_holds_more_than_plain_values_is_refused():
    feed = follow(DataLoader(cases.Odd(9), 4), rank=0, world=1)
    next(iter(feed))
    with pytest.raises(UsageError, match="must not run code when it is loaded"):
        feed.state()


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("workers", [0, 2])
def test_torchdatas_loader_is_followed_as_torchs(workers):
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    samplers = pytest.importorskip("torchdata.stateful_dataloader.sampler")

    def loader(dataset, **told):
        return lambda: stateful.StatefulDataLoader(dataset(), 4, num_workers=workers, **told)

    for make in (
        loader(lambda: cases.Stream(23, noisy=True)),
        loader(lambda: cases.IteratorStream(23)),
        loader(lambda: cases.Noisy(23), shuffle=True),
        loader(lambda: cases.Noisy(23), sampler=samplers.StatefulDistributedSampler(range(23), 1, 0)),
    ):
        wanted = cases.run(make, epochs=2)[0]
        if not (workers and isinstance(make().sampler, samplers.RandomSampler)):  # it draws two orders then, and uses the second
            assert wanted == cases.plain_run(make, epochs=2)
        for stop in (4, 9):
            log, state, rng = cases.run(make, epochs=2, stop=stop)
            assert log + cases.run(make, epochs=2, states=[state], rng=rng)[0] == wanted, stop


def test_a_loader_of_another_kind_is_followed_by_its_own_state():
    wanted = list(cases.OwnLoader(10))
    for stop in range(1, 10):
        feed = follow(cases.OwnLoader(10), rank=0, world=1)
        iterator = iter(feed)
        seen = [next(iterator) for _ in range(stop)]
        other = follow(cases.OwnLoader(10), rank=0, world=1)
        other.load([cases.through_file(feed.state())])
        assert seen + list(other) == wanted
        assert other.epoch == 1

"""One rank, map-style datasets: an undisturbed run is the plain loader's, bit for bit, and so is one that was interrupted anywhere."""

import feedcases as cases
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

from ettrain.boost import generators
from ettrain.boost.feed import follow

N = 23


def generator():
    return torch.Generator().manual_seed(3)


def double(samples):
    return 2 * torch.stack(samples)


def reseed(worker):
    torch.manual_seed(torch.utils.data.get_worker_info().seed % 1000 + worker)


LOADERS = {
    "in sequence": lambda: DataLoader(cases.Noisy(N), batch_size=4),
    "shuffled": lambda: DataLoader(cases.Noisy(N), batch_size=4, shuffle=True),
    "shuffled by a generator": lambda: DataLoader(cases.Noisy(N), batch_size=4, shuffle=True, generator=generator()),
    "drop_last": lambda: DataLoader(cases.Noisy(N), batch_size=4, shuffle=True, drop_last=True),
    "a sampler with a generator of its own": lambda: DataLoader(cases.Noisy(N), 4, sampler=RandomSampler(range(N), generator=generator())),
    "with replacement": lambda: DataLoader(cases.Noisy(N), 4, sampler=RandomSampler(range(N), replacement=True, num_samples=70)),
    "more than once": lambda: DataLoader(cases.Noisy(5), 4, sampler=RandomSampler(range(5), num_samples=13, generator=generator())),
    "a subset": lambda: DataLoader(cases.Noisy(N), 4, sampler=SubsetRandomSampler(range(3, N))),
    "a part, in sequence": lambda: DataLoader(cases.Noisy(N), 4, sampler=SequentialSampler(range(15))),
    "a part, shuffled": lambda: DataLoader(cases.Noisy(N), 4, sampler=RandomSampler(range(15))),
    "a part, distributed": lambda: DataLoader(cases.Noisy(N), 4, sampler=DistributedSampler(range(15), 1, 0)),
    "weighted": lambda: DataLoader(cases.Noisy(N), 4, sampler=WeightedRandomSampler([1.0] * N, N)),
    "distributed": lambda: DataLoader(cases.Noisy(N), 4, sampler=DistributedSampler(range(N), 1, 0, seed=5)),
    "a batch sampler of torch's": lambda: DataLoader(cases.Noisy(N), batch_sampler=BatchSampler(SequentialSampler(range(N)), 4, drop_last=True)),
    "single samples": lambda: DataLoader(cases.Noisy(9), batch_size=None, shuffle=True),
    "indices in lists": lambda: DataLoader(cases.Lists(9), batch_size=None, sampler=BatchSampler(SequentialSampler(range(9)), 2, drop_last=False)),
    "a sampler of the epoch": lambda: DataLoader(cases.Noisy(N), 4, sampler=cases.EpochSampler(N)),
    "a sampler that draws globally": lambda: DataLoader(cases.Noisy(N), 4, sampler=cases.DrawingSampler(N)),
    "a sampler with a state": lambda: DataLoader(cases.Noisy(N), 4, sampler=cases.StateSampler(N)),
    "a batch sampler of its own": lambda: DataLoader(cases.Noisy(N), batch_sampler=cases.Buckets(N)),
    "batches taken at once": lambda: DataLoader(cases.Many(N), 4, shuffle=True),
}

WORKERS = {
    "one worker": lambda: DataLoader(cases.Noisy(N), 4, shuffle=True, num_workers=1),
    "two workers": lambda: DataLoader(cases.Noisy(N), 4, shuffle=True, num_workers=2, collate_fn=double, worker_init_fn=reseed),
    "persistent workers": lambda: DataLoader(cases.Noisy(N), 4, shuffle=True, num_workers=2, persistent_workers=True, prefetch_factor=3),
    "workers and a generator": lambda: DataLoader(cases.Noisy(N), 4, shuffle=True, num_workers=2, generator=generator(), drop_last=True),
    "single samples": lambda: DataLoader(cases.Noisy(7), batch_size=None, shuffle=True, num_workers=2),
    "indices in lists": lambda: DataLoader(cases.Lists(19), batch_size=None, sampler=BatchSampler(SequentialSampler(range(19)), 2, drop_last=False), num_workers=2),
    "a sampler with a state": lambda: DataLoader(cases.Noisy(N), 4, sampler=cases.StateSampler(N), num_workers=2),
    "a batch sampler of its own": lambda: DataLoader(cases.Noisy(N), batch_sampler=cases.Buckets(N), num_workers=2),
}


def ends_of_batches(log):
    return [number + 1 for number, entry in enumerate(log) if entry[0] != "end of epoch"]


@pytest.mark.parametrize("name", LOADERS)
def test_a_run_interrupted_after_any_batch_goes_on_as_if_it_had_not_been(name):
    make = LOADERS[name]
    wanted = cases.plain_run(make, epochs=2)
    assert cases.run(make, epochs=2)[0] == wanted
    batches = ends_of_batches(wanted)
    half = len(batches) // 2
    for stop in batches if name == "shuffled" else (batches[0], batches[half - 2], batches[half - 1], batches[half], batches[-1]):
        log, state, rng = cases.run(make, epochs=2, stop=stop)
        assert log + cases.run(make, epochs=2, states=[state], rng=rng)[0] == wanted, stop


@pytest.mark.parametrize("name", WORKERS)
def test_so_it_does_with_workers_that_draw_random_numbers(name):
    make = WORKERS[name]
    wanted = cases.plain_run(make, epochs=2)
    assert cases.run(make, epochs=2)[0] == wanted
    batches = ends_of_batches(wanted)
    for stop in (batches[0], batches[2], batches[len(batches) // 2 - 1]):
        log, state, rng = cases.run(make, epochs=2, stop=stop)
        assert log + cases.run(make, epochs=2, states=[state], rng=rng)[0] == wanted, stop


def test_workers_that_take_their_samples_at_once_go_on_as_well_once_each_has_given_a_batch():
    def make():
        return DataLoader(cases.Many(N), 4, shuffle=True, num_workers=2)

    wanted = cases.plain_run(make, epochs=1)
    for stop in (2, 3):
        log, state, rng = cases.run(make, epochs=1, stop=stop)
        assert log + cases.run(make, epochs=1, states=[state], rng=rng)[0] == wanted, stop


@pytest.mark.parametrize("name", ["shuffled", "shuffled by a generator"])
def test_a_checkpoint_between_two_epochs_goes_on_with_the_next(name):
    make = LOADERS[name]
    between_epochs(make)


def test_a_checkpoint_between_two_epochs_finds_lasting_workers_as_they_were():
    between_epochs(WORKERS["persistent workers"])


def between_epochs(make):
    wanted = cases.plain_run(make, epochs=2)
    log, state, rng = cases.run(make, epochs=1)
    assert not state["begun"]
    assert state["epoch"] == 1
    assert log + cases.run(make, epochs=2, states=[state], rng=rng)[0] == wanted


def test_interrupted_three_times_it_is_still_the_same():
    make = WORKERS["two workers"]
    wanted = cases.plain_run(make, epochs=3)
    log, states, rng = [], None, None
    for stop in (2, 5, 4, None):
        more, state, rng = cases.run(make, epochs=3, stop=stop, states=states, rng=rng)
        log, states = log + more, [state]
    assert log == wanted


def test_workers_may_change_in_number_from_attempt_to_attempt():
    log, states = [], None
    for workers, stop in ((2, 2), (0, 1), (1, 1), (2, None)):
        feed = follow(DataLoader(cases.Ids(N), 4, shuffle=True, num_workers=workers), rank=0, world=1)
        if states is None:
            cases.seed_all()
        else:
            feed.load(states)
        for batch in feed:
            log += batch.tolist()
            stop = None if stop is None else stop - 1
            if stop == 0:
                break
        states = [cases.through_file(feed.state())]
    assert sorted(log) == list(range(N))


def test_it_is_said_that_augmentations_differ_after_workers_changed_in_number(capsys):
    make = WORKERS["two workers"]
    _, state, _ = cases.run(make, epochs=1, stop=4)
    follow(DataLoader(cases.Noisy(N), 4, shuffle=True), rank=0, world=1).load([state])
    assert "draws random numbers in its workers, whose number changed" in capsys.readouterr().err


def test_a_pass_that_was_left_is_gone_on_with_by_the_next():
    feed = follow(WORKERS["persistent workers"](), rank=0, world=1)
    seen = [int(row[0]) for row in next(iter(feed))]
    for batch in feed:
        seen += [int(row[0]) for row in batch]
    assert sorted(seen) == list(range(N))
    assert feed.epoch == 1


def test_an_older_pass_cannot_be_gone_on_with():
    feed = follow(LOADERS["shuffled"](), rank=0, world=1)
    older = iter(feed)
    next(older)
    next(iter(feed))
    with pytest.raises(Exception, match="a later pass over this loader has begun"):
        next(older)


def test_the_batch_size_may_change_in_the_middle_of_an_epoch():
    feed = follow(DataLoader(cases.Ids(N), 4, shuffle=True), rank=0, world=1)
    seen = next(iter(feed)).tolist()
    other = follow(DataLoader(cases.Ids(N), 7, shuffle=True), rank=0, world=1)
    other.load([feed.state()])
    sizes = []
    for batch in other:
        seen += batch.tolist()
        sizes.append(len(batch))
    assert sorted(seen) == list(range(N))
    assert sizes == [7, 7, 5]


def test_finding_the_order_again_moves_no_global_generator():
    feed = follow(LOADERS["a sampler that draws globally"](), rank=0, world=1)
    next(iter(feed))
    other = follow(DataLoader(cases.Ids(N), 4, sampler=cases.DrawingSampler(N)), rank=0, world=1)
    other.load([feed.state()])
    iterator = iter(other)
    before = generators.take()
    next(iterator)
    assert generators.moved(before, generators.take()) == []


def test_the_position_is_told_to_people():
    feed = follow(LOADERS["shuffled"](), rank=0, world=1)
    iterator = iter(feed)
    next(iterator)
    next(iterator)
    assert feed.summary() == {"epoch": 0, "batches": 2, "samples": 8, "of": N}


def test_a_run_that_is_set_back_within_its_process_goes_on_as_it_did():
    for make in (LOADERS["shuffled by a generator"], WORKERS["persistent workers"]):
        wanted = cases.plain_run(make, epochs=2)
        cases.seed_all()
        feed, log, kept = follow(make(), rank=0, world=1), [], []

        def keep(entries, feed=feed, kept=kept):
            if entries == 3:
                kept.append((cases.through_file(feed.state()), generators.take()))
            return entries == 5

        cases.train(feed, epochs=2, log=log, at=keep)
        state, rng = kept[0]
        feed.load([state], at_resume=lambda rng=rng: generators.put_back(rng))
        log = log[:3]
        cases.train(feed, epochs=2, log=log, start=feed.epoch)
        assert log == wanted


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_may_be_started_in_any_way(method):
    for make in (
        lambda: DataLoader(cases.Noisy(N), 4, shuffle=True, num_workers=2, multiprocessing_context=method, worker_init_fn=reseed),
        lambda: DataLoader(cases.Piece(), 4, num_workers=2, multiprocessing_context=method, worker_init_fn=cases.set_piece),
    ):
        wanted = cases.plain_run(make, epochs=1)
        log, state, rng = cases.run(make, epochs=1, stop=3)
        assert log + cases.run(make, epochs=1, states=[state], rng=rng)[0] == wanted


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
def test_batches_in_pinned_memory_are_the_same():
    def make():
        return DataLoader(cases.Noisy(N), 4, shuffle=True, num_workers=2, pin_memory=True)

    wanted = cases.plain_run(make, epochs=1)
    log, state, rng = cases.run(make, epochs=1, stop=3)
    assert log + cases.run(make, epochs=1, states=[state], rng=rng)[0] == wanted
    assert next(iter(follow(make(), rank=0, world=1))).is_pinned()


def test_datasets_with_a_state_have_it_kept_in_their_workers():
    def make():
        return DataLoader(cases.Counted(12), 2, num_workers=2)

    wanted = cases.plain_run(make, epochs=1)
    for stop in (1, 3, 4):
        log, state, rng = cases.run(make, epochs=1, stop=stop)
        assert log + cases.run(make, epochs=1, states=[state], rng=rng)[0] == wanted

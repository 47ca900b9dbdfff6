"""Datasets and samplers of a program's own, importable by workers of any start method; and how a run is interrupted and resumed."""

# ruff: noqa: NPY002 - programs draw from the global generator

import io
import random

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info

from ettrain.boost import generators
from ettrain.boost.feed import follow


class Ids(Dataset):
    """Sample `i` is `i`; counts how often it was asked, in this process."""

    def __init__(self, size):
        self.size = size
        self.asked = 0

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if not 0 <= index < self.size:
            raise IndexError(index)
        self.asked += 1
        return torch.tensor(index)


class Noisy(Ids):
    """Draws from all three global generators for each sample."""

    def __getitem__(self, index):
        return torch.tensor([float(index), torch.rand(()).item(), random.random(), np.random.random(), float(torch.initial_seed() % 1000)], dtype=torch.float64)


class Lists(Ids):
    """Takes a list of indices as one."""

    def __getitem__(self, index):
        return torch.tensor([[float(number), torch.rand(()).item()] for number in index])


class Many(Ids):
    """Takes a batch of indices at once."""

    def __getitems__(self, indices):
        assert indices, "never asked for nothing"
        return [torch.tensor([float(index), torch.rand(()).item()], dtype=torch.float64) for index in indices]


class Counted(Ids):
    """A map-style dataset with a state: how many samples it gave."""

    def __getitem__(self, index):
        self.asked += 1
        return torch.tensor([index, self.asked])

    def state_dict(self):
        return {"asked": self.asked}

    def load_state_dict(self, state):
        self.asked = state["asked"]


class Stream(IterableDataset):
    """An iterable dataset with a state; worker `w` of `n` has the samples that are `w` modulo `n`, each noisy."""

    def __init__(self, size, *, noisy=False, uneven=False):
        self.size = size
        self.at = 0
        self.noisy = noisy
        self.uneven = uneven
        self.asked = 0

    def _share(self):
        info = get_worker_info()
        return (0, 1) if info is None else (info.id, info.num_workers)

    def __iter__(self):
        worker, workers = self._share()
        size = self.size // 3 if self.uneven and worker == 0 and workers > 1 else self.size
        while self.at * workers + worker < size:
            value = self.at * workers + worker
            self.at += 1
            self.asked += 1
            yield torch.tensor([float(value), torch.rand(()).item() if self.noisy else 0.0], dtype=torch.float64)
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class StreamIterator:
    def __init__(self, size):
        self.size, self.at = size, 0

    def __iter__(self):
        return self

    def __next__(self):
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        if self.at * workers + worker >= self.size:
            raise StopIteration
        self.at += 1
        return torch.tensor([float((self.at - 1) * workers + worker)])

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class IteratorStream(IterableDataset):
    """Its iterator has the state, as torchdata has it."""

    def __init__(self, size):
        self.size = size

    def __iter__(self):
        return StreamIterator(self.size)


class Stateless(IterableDataset):
    def __iter__(self):
        return iter(range(10))


class EpochSampler(Sampler):
    """Deterministic given the epoch."""

    def __init__(self, size):
        self.size, self.epoch = size, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.size

    def __iter__(self):
        return iter(np.random.default_rng(self.epoch).permutation(self.size).tolist())


class DrawingSampler(EpochSampler):
    """Draws from Python's and numpy's global generators."""

    def __iter__(self):
        order = list(range(self.size))
        random.shuffle(order)
        np.random.shuffle(order)
        return iter(order)


class ForgetfulSampler(EpochSampler):
    """Draws from a generator of its own that nobody sees."""

    def __init__(self, size, seed):
        super().__init__(size)
        self.random = random.Random(seed)

    def __iter__(self):
        order = list(range(self.size))
        self.random.shuffle(order)
        return iter(order)


class StateSampler(EpochSampler):
    """Endless as far as anybody knows; keeps its state."""

    __len__ = None

    def __init__(self, size):
        super().__init__(size)
        self.at = 0

    def __iter__(self):
        while self.at < self.size:
            self.at += 1
            yield (self.at - 1) * 7 % self.size
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Buckets(Sampler):
    """A batch sampler: batches of different sizes, in an order of the epoch's."""

    def __init__(self, size):
        self.size, self.epoch = size, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def _batches(self):
        batches, at = [], 0
        while at < self.size:
            step = 1 + at % 4
            batches.append(list(range(at, min(at + step, self.size))))
            at += step
        random.Random(self.epoch).shuffle(batches)
        return batches

    def __len__(self):
        return len(self._batches())

    def __iter__(self):
        return iter(self._batches())


def seed_all(seed=11):
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def through_file(state):
    """As a checkpoint keeps it."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def plain(batch):
    return batch.tolist() if hasattr(batch, "tolist") else batch


def train(loop, *, epochs, log, at=None, set_epoch=None, start=0):
    """Batches and, as a model would, draws of the global generators after each; `at(step)` true ends the run there."""
    for epoch in range(start, epochs):
        if set_epoch is not None:
            set_epoch(epoch)
        for batch in loop:
            log.append((plain(batch), torch.rand(()).item(), random.random(), np.random.random()))
            if at is not None and at(len(log)):
                return
        log.append(("end of epoch", torch.rand(()).item()))


def run(make, *, epochs, stop=None, states=None, rng=None, seed=11, set_epoch=True, rank=0, world=1, between=False, **told):
    """One attempt in a fresh loader: its log, state and generators at the end."""
    seed_all(seed if states is None else 999)
    loader = make()
    feed = follow(loader, rank=rank, world=world, **told)
    if states is not None:
        feed.load(states, at_resume=lambda: generators.put_back(generators.from_plain(rng)))
    sampler = getattr(loader, "batch_sampler", None)
    sampler = sampler if hasattr(sampler, "set_epoch") else getattr(loader, "sampler", None)
    setter = getattr(sampler, "set_epoch", None) if set_epoch else None
    log = []

    def at(entries):
        if stop is not None and entries == stop:
            kept.append((through_file(feed.state()), through_file(generators.as_plain(generators.take()))))
            return True
        return False

    kept = []
    train(feed, epochs=epochs, log=log, at=at, set_epoch=setter, start=feed.epoch)
    if not kept:
        kept.append((through_file(feed.state()), through_file(generators.as_plain(generators.take()))))
    return log, *kept[0]


def plain_run(make, *, epochs, seed=11, set_epoch=True):
    """What the program does without any of this."""
    seed_all(seed)
    loader = make()
    sampler = getattr(loader, "batch_sampler", None)
    sampler = sampler if hasattr(sampler, "set_epoch") else getattr(loader, "sampler", None)
    log = []
    train(loader, epochs=epochs, log=log, set_epoch=getattr(sampler, "set_epoch", None) if set_epoch else None)
    return log


class Piece(IterableDataset):
    """The example of torch's documentation: `worker_init_fn` sets the piece of each worker."""

    def __init__(self):
        self.start, self.end, self.at = 0, 22, 0

    def __iter__(self):
        while self.start + self.at < self.end:
            self.at += 1
            yield torch.tensor([float(self.start + self.at - 1)])
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def set_piece(worker):
    dataset = get_worker_info().dataset
    start, end = dataset.start, dataset.end
    dataset.start, dataset.end = (start, end // 3) if worker == 0 else (end // 3, end)


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield 1


class Odd(Stream):
    def state_dict(self):
        return {"at": self.at, "self": Odd}


class OwnLoader:
    """No DataLoader at all."""

    def __init__(self, size):
        self.size, self.at = size, 0

    def __iter__(self):
        while self.at < self.size:
            self.at += 1
            yield torch.tensor(self.at)
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class ShardedStream(Stream):
    """A stream whose workers on all ranks share the data."""

    def __init__(self, size, rank, world):
        super().__init__(size)
        self.rank, self.world = rank, world

    def _share(self):
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        return self.rank * workers + worker, self.world * workers

    def __iter__(self):
        for sample in super().__iter__():
            yield torch.cat([sample[:1], torch.rand(4).double()])


class Piece1(IterableDataset):
    """One piece of `InPieces`: every seventh number, each with noise."""

    def __init__(self, numbers):
        self.numbers, self.at = numbers, 0

    def __iter__(self):
        while self.at < len(self.numbers):
            self.at += 1
            yield torch.tensor([float(self.numbers[self.at - 1]), torch.rand(()).item()], dtype=torch.float64)
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class InPieces(IterableDataset):
    """A dataset in seven pieces."""

    def __init__(self, size, pieces=7):
        self.size, self.pieces = size, pieces

    def piece(self, number):
        return Piece1(range(number, self.size, self.pieces))

    def __iter__(self):
        raise NotImplementedError

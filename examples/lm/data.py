"""Text by the line: an index of lines, documents as bytes, batches padded to their longest document, and a resumable sampler."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset
from torch.utils.data.distributed import DistributedSampler

NUM_TOKENS = 256  # tokens are bytes
START = 0  # begins every document; never occurs in text
IGNORED = -100  # target of padding, which cross_entropy leaves out


class Document(NamedTuple):
    """One line of the file; `row` is its line number, counted from 0."""

    text: bytes
    row: int


class Batch(NamedTuple):
    """Documents padded on the right to the longest of them."""

    tokens: Tensor  # int64 (batch, length), what the model reads
    targets: Tensor  # int64 (batch, length), what comes next, IGNORED where nothing does
    rows: Tensor  # int64 (batch,), line numbers


class TextLines(Dataset[Document]):
    """Random access to the lines of a text file; each process maps the file when it first reads."""

    def __init__(self, path: Path, context: int) -> None:
        self.path = path
        self.context = context
        self.offsets = build_line_index(path)
        self._map: mmap.mmap | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Document:
        if self._map is None:
            with self.path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        line = self._map[self.offsets[row] : self.offsets[row + 1]]
        return Document(line[: self.context], row)


def build_line_index(path: Path) -> list[int]:
    """Return the byte offset of every line of `path`, plus the end of the last line."""
    offsets = [0]
    with path.open("rb") as file:
        for line in file:
            offsets.append(offsets[-1] + len(line))
    return offsets


def collate(documents: list[Document]) -> Batch:
    """Pad documents to the longest; position i of `targets` is what follows position i of `tokens`."""
    length = max(len(document.text) for document in documents)
    tokens = torch.full((len(documents), length), START)
    targets = torch.full((len(documents), length), IGNORED)
    for index, (text, _) in enumerate(documents):
        values = torch.tensor(list(text))
        targets[index, : len(text)] = values
        tokens[index, 1 : len(text)] = values[:-1]
    return Batch(tokens, targets, torch.tensor([document.row for document in documents]))


class ResumableSampler(DistributedSampler[int]):
    """A shuffling DistributedSampler that can start anywhere in an epoch.

    The order of an epoch depends on seed and epoch only. Ranks take turns in it, so after any whole
    number of steps the documents consumed are a prefix of the order, whatever the number of ranks was.
    What is left at the end and cannot be dealt evenly (fewer documents than ranks) is dropped.
    """

    def __init__(self, dataset: Subset[Document], world_size: int, rank: int, seed: int) -> None:
        super().__init__(dataset, num_replicas=world_size, rank=rank, seed=seed, drop_last=True)
        self.dataset_size = len(dataset)
        self.start = 0

    def set_position(self, epoch: int, start: int) -> None:
        """Begin the next iteration in `epoch`, after the first `start` documents (all ranks together)."""
        self.set_epoch(epoch)
        self.start = start

    def __len__(self) -> int:
        return (self.dataset_size - self.start) // self.num_replicas

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.dataset_size, generator=generator)
        yield from order[self.start + self.rank :: self.num_replicas][: len(self)].tolist()


def load(
    dataset: Subset[Document], batch_size: int, workers: int, sampler: ResumableSampler | None
) -> DataLoader[Document]:
    """Batches of `dataset`, the last one smaller where the documents do not come out even."""
    make = partial(DataLoader, dataset, batch_size, num_workers=workers, collate_fn=collate)
    return make(sampler=sampler)

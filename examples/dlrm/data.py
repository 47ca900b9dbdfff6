"""Criteo TSV data: a line index, a map-style dataset that parses rows on demand, and a resumable sampler."""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset
from torch.utils.data.distributed import DistributedSampler

NUM_DENSE = 13
NUM_TABLES = 26
NUM_COLUMNS = 1 + NUM_DENSE + NUM_TABLES
INDEX_CHUNK_BYTES = 64 << 20
SAMPLER_CHUNK = 1 << 16


class Row(NamedTuple):
    """One parsed line of the file; `row` is its line number, counted from 0."""

    label: float
    dense: list[int]
    categories: list[int]
    row: int


class Batch(NamedTuple):
    """Rows stacked into tensors, with the batch as first dimension."""

    labels: Tensor  # float32 (batch,)
    dense: Tensor  # float32 (batch, 13), log(1 + x)
    categories: Tensor  # int64 (batch, 26), row within each table
    rows: Tensor  # int64 (batch,), line numbers


def build_line_index(path: Path) -> np.ndarray:
    """Return the byte offsets of all lines of `path`, plus the end of the last line (int64, lines + 1)."""
    ends = []
    position = 0
    with path.open("rb") as file:
        while chunk := file.read(INDEX_CHUNK_BYTES):
            ends.append(np.flatnonzero(np.frombuffer(chunk, dtype=np.uint8) == ord("\n")) + position + 1)
            position += len(chunk)
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), *ends])
    return offsets if offsets[-1] == position else np.append(offsets, position)


class CriteoRows(Dataset[Row]):
    """Random access to the rows of a Criteo TSV file; each process maps the file when it first reads."""

    def __init__(self, path: Path, table_size: int) -> None:
        self.path = path
        self.table_size = table_size
        self.offsets = build_line_index(path)
        self._map: mmap.mmap | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Row:
        if self._map is None:
            with self.path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        line = self._map[self.offsets[row] : self.offsets[row + 1]]
        fields = line.rstrip(b"\r\n").split(b"\t")
        if len(fields) != NUM_COLUMNS:
            raise ValueError(f"{self.path}, line {row + 1}: {len(fields)} columns, expected {NUM_COLUMNS}")
        dense = [int(field) if field else 0 for field in fields[1 : 1 + NUM_DENSE]]
        categories = [self._table_row(field) for field in fields[1 + NUM_DENSE :]]
        return Row(float(fields[0]), dense, categories, row)

    def _table_row(self, field: bytes) -> int:
        """Hash a hexadecimal id to a table row; row 0 is kept for missing values."""
        return 1 + int(field, 16) % (self.table_size - 1) if field else 0


class SlowService(Dataset[Row]):
    """A dataset whose first row, in each process, comes late: as from a remote service that has to warm up."""

    def __init__(self, rows: Dataset[Row], delay_s: float) -> None:
        self.rows = rows
        self.delay_s = delay_s

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> Row:
        delay_s, self.delay_s = self.delay_s, 0.0
        time.sleep(delay_s)
        return self.rows[row]


def collate(rows: list[Row]) -> Batch:
    """Stack parsed rows; dense values become log(1 + x), with the few negative ones taken as 0."""
    labels, dense, categories, numbers = zip(*rows, strict=True)
    return Batch(
        torch.tensor(labels, dtype=torch.float32),
        torch.log1p(torch.tensor(dense, dtype=torch.float32).clamp(min=0)),
        torch.tensor(categories, dtype=torch.int64),
        torch.tensor(numbers, dtype=torch.int64),
    )


class ResumableSampler(DistributedSampler[int]):
    """A shuffling DistributedSampler that can start anywhere in an epoch.

    The order of an epoch depends on seed and epoch only. Ranks take turns in it, so after any whole
    number of steps the samples consumed are a prefix of the order, whatever the number of ranks was.
    What is left at the end and cannot be dealt evenly (fewer samples than ranks) is dropped.
    """

    def __init__(self, dataset: Subset[Row], world_size: int, rank: int, seed: int) -> None:
        super().__init__(dataset, num_replicas=world_size, rank=rank, seed=seed, drop_last=True)
        self.dataset_size = len(dataset)
        self.start = 0

    def set_position(self, epoch: int, start: int) -> None:
        """Begin the next iteration in `epoch`, after the first `start` samples (all ranks together)."""
        self.set_epoch(epoch)
        self.start = start

    def __len__(self) -> int:
        return (self.dataset_size - self.start) // self.num_replicas

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.dataset_size, generator=generator)
        mine = order[self.start + self.rank :: self.num_replicas][: len(self)]
        for chunk in mine.split(SAMPLER_CHUNK):
            yield from chunk.tolist()

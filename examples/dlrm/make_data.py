"""Write a synthetic click log in the Criteo TSV format: skewed, with gaps, and with something to learn."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data import NUM_DENSE, NUM_TABLES

CHUNK_ROWS = 50_000
PILOT_ROWS = 20_000
WEIGHTS_PER_TABLE = 2_000

# Distinct values and share of missing values per categorical column, much like Criteo's Kaggle set.
CARDINALITIES = np.array(
    [1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10]
    + [5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572],
    dtype=np.float64,
)
MISSING_CATEGORY = np.array(
    [0, 0, 0.03, 0.03, 0, 0.12, 0, 0, 0, 0, 0, 0.03, 0]
    + [0, 0, 0.03, 0, 0, 0.44, 0.44, 0.03, 0.76, 0, 0.03, 0.44, 0.44]
)
# Location and scale of the logarithm of each dense column, and its share of missing values.
DENSE_LOCATION = np.array([0.6, 2.0, 2.0, 1.5, 7.5, 3.5, 1.5, 2.0, 3.8, 0.2, 0.8, 0.1, 1.6])
DENSE_SCALE = np.array([1.2, 1.9, 1.3, 1.0, 2.2, 1.6, 1.3, 0.9, 1.3, 0.5, 1.0, 0.7, 1.0])
MISSING_DENSE = np.array([0.45, 0, 0.21, 0.22, 0.03, 0.22, 0.04, 0, 0.04, 0.45, 0.04, 0.77, 0.22])

# Logits are spread around this centre, in units of a sigmoid's input: about a quarter of labels is 1.
LOGIT_CENTRE = -1.4
LOGIT_SPREAD = 1.4


@dataclass
class Rows:
    """Some rows before they are turned into text."""

    dense: np.ndarray  # float64 (rows, 13), logarithms
    categories: np.ndarray  # int64 (rows, 26), rank of the value in its column, 0 the most frequent
    dense_missing: np.ndarray  # bool (rows, 13)
    category_missing: np.ndarray  # bool (rows, 26)


def draw_rows(rng: np.random.Generator, count: int, exponents: np.ndarray) -> Rows:
    """Draw features; category ranks follow a power law with the given exponent per column."""
    power = 1.0 - exponents
    uniform = rng.random((count, NUM_TABLES))
    ranks = (1.0 + uniform * ((CARDINALITIES + 1.0) ** power - 1.0)) ** (1.0 / power) - 1.0
    return Rows(
        dense=DENSE_LOCATION + DENSE_SCALE * rng.standard_normal((count, NUM_DENSE)),
        categories=np.minimum(ranks, CARDINALITIES - 1.0).astype(np.int64),
        dense_missing=rng.random((count, NUM_DENSE)) < MISSING_DENSE,
        category_missing=rng.random((count, NUM_TABLES)) < MISSING_CATEGORY,
    )


class HiddenModel:
    """The logistic model that decides the labels: a weight per dense column and per categorical value."""

    def __init__(self, rng: np.random.Generator, exponents: np.ndarray) -> None:
        self.dense_weights = rng.normal(0.0, 0.5, NUM_DENSE)
        self.value_weights = rng.normal(0.0, 0.5, (NUM_TABLES, WEIGHTS_PER_TABLE))
        pilot = self._scores(draw_rows(rng, PILOT_ROWS, exponents))
        self.mean, self.deviation = pilot.mean(), pilot.std()

    def _scores(self, rows: Rows) -> np.ndarray:
        """Weighted sum per row; missing values add nothing."""
        dense = (rows.dense - DENSE_LOCATION) / DENSE_SCALE * ~rows.dense_missing
        values = self.value_weights[np.arange(NUM_TABLES), rows.categories % WEIGHTS_PER_TABLE]
        return dense @ self.dense_weights + (values * ~rows.category_missing).sum(axis=1)

    def labels(self, rng: np.random.Generator, rows: Rows) -> np.ndarray:
        """Draw 0 or 1 per row."""
        logits = LOGIT_CENTRE + LOGIT_SPREAD * (self._scores(rows) - self.mean) / self.deviation
        return (rng.random(len(logits)) < 1.0 / (1.0 + np.exp(-logits))).astype(np.int64)


def category_text(ranks: np.ndarray, salts: np.ndarray) -> np.ndarray:
    """Turn ranks into 8-digit hexadecimal ids, distinct within a column (bytes, same shape)."""
    ids = (ranks.astype(np.uint32) * np.uint32(2654435761)) ^ salts
    digits = np.ascontiguousarray(ids, dtype=">u4").tobytes().hex().encode()
    return np.frombuffer(digits, dtype="S8").reshape(ranks.shape)


def to_lines(labels: np.ndarray, rows: Rows, salts: np.ndarray) -> bytes:
    """Join a chunk into tab-separated lines."""
    dense = np.minimum(np.exp(rows.dense), 2**31 - 1).astype(np.int64).astype("S10")
    dense[rows.dense_missing] = b""
    categories = category_text(rows.categories, salts).copy()
    categories[rows.category_missing] = b""
    columns = [labels.astype("S1").tolist(), *dense.T.tolist(), *categories.T.tolist()]
    return b"\n".join(map(b"\t".join, zip(*columns, strict=True))) + b"\n"


def write_file(path: Path, rows: int, seed: int) -> float:
    """Write `rows` rows to `path` and return the share of positive labels. Same seed, same file."""
    rng = np.random.default_rng(seed)
    exponents = rng.uniform(1.05, 1.3, NUM_TABLES)
    salts = rng.integers(0, 2**32, NUM_TABLES, dtype=np.uint32)
    model = HiddenModel(rng, exponents)
    positives = 0
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        for start in range(0, rows, CHUNK_ROWS):
            chunk = draw_rows(rng, min(CHUNK_ROWS, rows - start), exponents)
            labels = model.labels(rng, chunk)
            positives += int(labels.sum())
            file.write(to_lines(labels, chunk, salts))
    os.replace(temporary, path)
    return positives / rows


def main() -> None:
    """Read the command line and write the file."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("criteo.tsv"), help="file to write")
    parser.add_argument("--rows", type=int, default=200_000, help="number of rows, at least 1")
    parser.add_argument("--seed", type=int, default=0, help="same seed and rows, same file")
    args = parser.parse_args()
    share = write_file(args.out, args.rows, args.seed)
    print(f"{args.out}: {args.rows} rows, {share:.1%} positive, {args.out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()

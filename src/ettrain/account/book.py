"""The book of a job's time: per leaf, wall and device ns, training split into effective and unsaved; and the job's life as slices."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import itemgetter

from ettrain.account.rollback import LostWindow
from ettrain.account.timeline import LeafTable, Tiles
from ettrain.lifecycle import EFFECTIVE, UNSAVED, component_of, leaf_path

PathSlice = tuple[int, int, str]
"""(start, end, path of the leaf)."""


@dataclass(slots=True, kw_only=True)
class Leaf:
    """One leaf of the tree of categories. Times in ns."""

    path: str
    component: str
    wall_ns: int = 0
    device_ns: int = 0
    repeated_ns: int = 0
    """The part of `wall_ns` that repeats what an earlier attempt had already done."""
    parts: dict[str, int] = field(default_factory=dict)
    """Finer labels -> wall ns; they add up to `wall_ns`, what has no label under ''."""


class Book:
    """Adds up wall and device time per leaf."""

    def __init__(self, leaves: LeafTable, lost: list[LostWindow]) -> None:
        self._pairs = leaves.pairs
        self._lost = lost
        self.leaves: dict[str, Leaf] = {}
        self.effective_ns = 0
        self.effective_device_ns = 0
        self.slices: list[PathSlice] = []
        """The job's life so far, in order, neighbours with different paths."""

    def wall(self, start: int, end: int, code: int, *, restart: bool) -> None:
        """Book one slice of the job's life."""
        leaf, part = self._pairs[code]
        if leaf != EFFECTIVE:
            self._book(start, end, leaf_path(leaf, restart=restart), part)
            return
        for low, high, lost in split(start, end, self._lost):
            if lost:
                self._book(low, high, UNSAVED, "")
            else:
                self.effective_ns += high - low
                self._slice(low, high, EFFECTIVE)

    def device(self, tiles: Tiles, *, restart: bool) -> None:
        """Book one rank's tiles."""
        for (leaf, _), total in zip(self._pairs, tiles.totals(len(self._pairs)), strict=True):
            if not total:
                continue
            if leaf != EFFECTIVE:
                self.leaf(leaf_path(leaf, restart=restart)).device_ns += total * tiles.devices
                continue
            begin, end = bisect_right(self._lost, tiles.starts[0], key=itemgetter(1)), bisect_left(self._lost, tiles.end, key=itemgetter(0))
            lost = sum(self._trained_within(tiles, low, high) for low, high in self._lost[begin:end])
            self.effective_device_ns += (total - lost) * tiles.devices
            if lost:
                self.leaf(UNSAVED).device_ns += lost * tiles.devices

    def _trained_within(self, tiles: Tiles, low: int, high: int) -> int:
        """Training time of one rank within [low, high)."""
        first = max(0, bisect_right(tiles.starts, low) - 1)
        total = 0
        for index in range(first, bisect_left(tiles.starts, high)):
            if self._pairs[tiles.codes[index]][0] == EFFECTIVE:
                end = tiles.starts[index + 1] if index + 1 < len(tiles.starts) else tiles.end
                total += max(0, min(end, high) - max(tiles.starts[index], low))
        return total

    def leaf(self, path: str) -> Leaf:
        """The leaf of that path, made on first use."""
        found = self.leaves.get(path)
        if found is None:
            found = self.leaves[path] = Leaf(path=path, component=component_of(path))
        return found

    def between(self, start: int, end: int) -> Iterator[PathSlice]:
        """The job's life within [start, end)."""
        first = max(0, bisect_right(self.slices, start, key=itemgetter(0)) - 1)
        for index in range(first, len(self.slices)):
            low, high, path = self.slices[index]
            if low >= end:
                return
            if high > start:
                yield max(low, start), min(high, end), path

    def sum_of(self, start: int, end: int, prefix: str) -> int:
        """Time within [start, end) in leaves whose path begins so."""
        return sum(high - low for low, high, path in self.between(start, end) if path.startswith(prefix))

    def idle(self, start: int, end: int) -> int:
        """Time within [start, end) that is neither effective nor unsaved training."""
        return sum(high - low for low, high, path in self.between(start, end) if path not in (EFFECTIVE, UNSAVED))

    def _book(self, start: int, end: int, path: str, part: str) -> None:
        leaf = self.leaf(path)
        leaf.wall_ns += end - start
        leaf.parts[part] = leaf.parts.get(part, 0) + end - start
        if path == UNSAVED or path.startswith("failure/restart/"):
            leaf.repeated_ns += end - start
        self._slice(start, end, path)

    def _slice(self, start: int, end: int, path: str) -> None:
        if self.slices and self.slices[-1][2] == path and self.slices[-1][1] == start:
            self.slices[-1] = (self.slices[-1][0], end, path)
        else:
            self.slices.append((start, end, path))


def split(start: int, end: int, windows: list[tuple[int, int]]) -> Iterator[tuple[int, int, bool]]:
    """Cut [start, end) at the windows, which are disjoint and in order: (low, high, whether inside one)."""
    for index in range(bisect_right(windows, start, key=itemgetter(1)), len(windows)):
        low, high = windows[index]
        if low >= end:
            break
        if low > start:
            yield start, low, False
            start = low
        yield start, min(end, high), True
        start = min(end, high)
    if start < end:
        yield start, end, False

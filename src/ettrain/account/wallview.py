"""Many ranks' tiles -> the job's state at each instant: the leaf of the rank that is furthest behind in lifecycle order."""

from __future__ import annotations

import heapq
from itertools import chain, compress, islice
from operator import gt, itemgetter

from ettrain.account.timeline import LeafTable, Tiles
from ettrain.errors import LawError
from ettrain.lifecycle import DETECT, EFFECTIVE, RESCHEDULE, order_of

Slice = tuple[int, int, int]
"""(start, end, code) of the job's state."""


def wall_slices(ranks: list[Tiles], leaves: LeafTable, start: int, end: int) -> list[Slice]:
    """Merge the tiles of one attempt's ranks. The order of the ranks does not matter.

    Args:
        ranks: tiles that all cover [start, end) exactly; at least one. Helpers count only where there are no others.
    Returns:
        Slices that cover [start, end) exactly, neighbours with different codes.
    Raises:
        LawError: a rank's tiles leave a gap.
    """
    if start == end:
        return []
    ranks = [tiles for tiles in ranks if not tiles.helper] or ranks
    if len(ranks) == 1:
        return list(ranks[0])
    for tiles in ranks:
        if tiles.starts[0] != start or tiles.end != end:
            raise LawError(f"rank {tiles.rank}: its tiles cover [{tiles.starts[0]}, {tiles.end}), the attempt is [{start}, {end})")
    training = leaves.code(EFFECTIVE)
    changes: list[tuple[int, int, int]] = [(start, -1, training)]  # the last in the order: where no rank is elsewhere, all train
    for code, (starts, ends) in _by_code(ranks, training).items():
        for low, high in _union(starts, ends):
            changes.append((low, -1, code))
            changes.append((high, code, -1))
    changes.sort(key=itemgetter(0))
    behind = _Behind(leaves)
    slices: list[Slice] = []
    now = start
    for t, before, code in changes:
        if t > now:
            _append(slices, now, t, behind.furthest())
            now = t
        behind.change(before, code)
    _append(slices, now, end, behind.furthest())
    return slices


def _by_code(ranks: list[Tiles], but: int) -> dict[int, tuple[list[int], list[int]]]:
    """Code -> begins and ends of all ranks' tiles of that code."""
    found: dict[int, tuple[list[int], list[int]]] = {}
    for tiles in ranks:
        mine: dict[int, tuple[list[int], list[int]]] = {code: found.setdefault(code, ([], [])) for code in set(tiles.codes)}
        for start, end, code in tiles:
            if code != but:
                begins, ends = mine[code]
                begins.append(start)
                ends.append(end)
    found.pop(but, None)
    return found


def _union(starts: list[int], ends: list[int]) -> list[tuple[int, int]]:
    """The instants at which any of the intervals is open, as disjoint intervals in order."""
    starts.sort()
    ends.sort()
    gaps = list(map(gt, islice(starts, 1, None), ends))
    return list(zip(chain(starts[:1], compress(islice(starts, 1, None), gaps)), chain(compress(ends, gaps), ends[-1:]), strict=True))


class _Behind:
    """The codes that ranks are in now, and the one that is furthest behind."""

    def __init__(self, leaves: LeafTable) -> None:
        order = sorted(range(len(leaves.pairs)), key=lambda code: (_level(leaves.pairs[code][0]), leaves.pairs[code]))
        self._code_at = order
        self._place_of = {code: place for place, code in enumerate(order)}
        self._held = [0] * len(order)
        self._heap: list[int] = []

    def change(self, before: int, code: int) -> None:
        """One rank goes from `before` (-1: from nowhere) to `code`."""
        if before >= 0:
            self._held[before] -= 1
        if code < 0:
            return
        if not self._held[code]:
            heapq.heappush(self._heap, self._place_of[code])
        self._held[code] += 1

    def furthest(self) -> int:
        """The code furthest behind in lifecycle order; of equal ones the first by name."""
        while not self._held[self._code_at[self._heap[0]]]:
            heapq.heappop(self._heap)
        return self._code_at[self._heap[0]]

    def ranks(self) -> int:
        """How many ranks are anywhere."""
        return sum(self._held)


def _level(leaf: str) -> int:
    """Rank of a leaf in the order 'furthest behind'; detect and reschedule are the same for all ranks and come first."""
    if leaf in (DETECT, RESCHEDULE):
        return (DETECT, RESCHEDULE).index(leaf)
    return 2 + order_of(leaf)


def _append(slices: list[Slice], begin: int, end: int, code: int) -> None:
    if begin >= end:
        return
    if slices and slices[-1][2] == code and slices[-1][1] == begin:
        slices[-1] = (slices[-1][0], end, code)
    else:
        slices.append((begin, end, code))

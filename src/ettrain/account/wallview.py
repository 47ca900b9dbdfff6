"""Many ranks' tiles -> the job's state at each instant: the leaf of the rank that is furthest behind in lifecycle order."""

from __future__ import annotations

from ettrain.account.timeline import LeafTable, Tiles
from ettrain.errors import LawError
from ettrain.lifecycle import DETECT, ORDER, RESCHEDULE, order_of

Slice = tuple[int, int, int]
"""(start, end, code) of the job's state."""


def wall_slices(ranks: list[Tiles], leaves: LeafTable, start: int, end: int) -> list[Slice]:
    """Merge the tiles of one attempt's ranks.

    Args:
        ranks: tiles that all cover [start, end) exactly; at least one.
    Returns:
        Slices that cover [start, end) exactly, neighbours with different codes.
    Raises:
        LawError: a rank's tiles leave a gap.
    """
    if len(ranks) == 1:
        return list(ranks[0])
    levels = [_level(leaf) for leaf, _ in leaves.pairs]
    events: list[tuple[int, int, int]] = []
    for tiles in ranks:
        before = -1
        for begin, code in zip(tiles.starts, tiles.codes, strict=True):
            events.append((begin, before, code))
            before = code
    events.sort()
    counts = [0] * (len(ORDER) + 2)
    codes: list[dict[int, int]] = [{} for _ in counts]
    slices: list[Slice] = []
    now = start
    state = -1
    for begin, before, code in events:
        if begin > now:
            _append(slices, now, begin, state)
            now = begin
        if before >= 0:
            counts[levels[before]] -= 1
            here = codes[levels[before]]
            here[before] -= 1
            if not here[before]:
                del here[before]
        level = levels[code]
        counts[level] += 1
        codes[level][code] = codes[level].get(code, 0) + 1
        behind = next(here for here, count in zip(codes, counts, strict=True) if count)
        state = next(reversed(behind))
    _append(slices, now, end, state)
    if sum(counts) != len(ranks):
        raise LawError(f"{len(ranks)} ranks, but {sum(counts)} tiles open at the end of the attempt")
    return slices


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

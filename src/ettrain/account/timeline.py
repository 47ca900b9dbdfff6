"""One rank's time in one attempt, as tiles that cover [attempt start, attempt end) exactly.

Three passes: base states between the recorder's landmarks (launch, setup, training, teardown), stages laid over them (the
user's own over found ones, then `lifecycle.PRIORITY`, then the innermost), and last the training time that was none: short
data waits and the excess of steps that stalled. Nothing is clamped: a tile that would end before it begins is a LawError.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter, lt, sub
from typing import Final

from ettrain.account.frames import Frame
from ettrain.account.history import Progress, RankHistory, Span
from ettrain.errors import LawError
from ettrain.lifecycle import DETECT, EFFECTIVE, PRIORITY, RESCHEDULE, SHUTDOWN, START, STEADY, UNTRACKED, leaf_of

FOREVER: Final = 1 << 62
_PRIORITY_INDEX: Final = {stage: index for index, stage in enumerate(PRIORITY)}
_BEFORE_TRAINING: Final = frozenset({"evaluation", "get_first_batch_data", "checkpoint_load", "checkpoint_save", "data_wait"})


class LeafTable:
    """Numbers for (leaf, part) pairs, so that millions of tiles are arrays of integers."""

    def __init__(self) -> None:
        self._codes: dict[tuple[str, str], int] = {}
        self.pairs: list[tuple[str, str]] = []

    def code(self, leaf: str, part: str = "") -> int:
        """Number of that pair; new pairs get the next one."""
        key = (leaf, part)
        found = self._codes.get(key)
        if found is None:
            found = self._codes[key] = len(self.pairs)
            self.pairs.append(key)
        return found


@dataclass(slots=True, kw_only=True)
class Tiles:
    """Tile i is [starts[i], starts[i + 1]) with leaf `codes[i]`; the last one ends at `end`."""

    rank: int
    devices: int
    starts: array[int]
    codes: array[int]
    end: int
    helper: bool = False
    """The rank never trains while others do, and did not break: the wall view does not wait for it."""

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """(start, end, code) of each tile."""
        return zip(self.starts, self.ends(), self.codes, strict=True)

    def ends(self) -> array[int]:
        """End of each tile."""
        ends = self.starts[1:]
        if self.starts:
            ends.append(self.end)
        return ends

    def totals(self, leaves: int) -> list[int]:
        """Code -> ns."""
        totals = [0] * leaves
        for code, took in zip(self.codes, map(sub, self.ends(), self.starts), strict=True):
            totals[code] += took
        return totals


_Tile = tuple[int, int, int]


def training_begin(rank: RankHistory) -> int | None:
    """Begin of the first training iteration: the last of first forward, first batch, and stages before the first backward.

    None where the process never trained; a forward alone counts only while nobody knows that no backward will follow.
    """
    marks = rank.marks
    anchor = min((t for t in (marks.get("first_backward"), rank.first_step_t) if t is not None), default=None)
    forward = marks.get("first_forward")
    if anchor is None:
        if forward is None or (rank.exit_t is not None and rank.error is None):
            return None
        anchor = rank.end
    begin = forward if forward is not None and forward <= anchor else None
    for span in rank.spans:
        if span.label.stage in _BEFORE_TRAINING and span.end <= anchor and (begin is None or span.end > begin):
            begin = span.end
    return anchor if begin is None else begin


def tile_rank(rank: RankHistory, frame: Frame, leaves: LeafTable) -> Tiles:
    """Cover [frame.start, frame.end) with tiles of one rank.

    Raises:
        LawError: the tiles do not cover the attempt exactly.
    """
    stop = frame.stopped
    edges = _base(rank, frame, leaves)
    shutdown_t = _shutdown_begin(rank, frame)
    first_step_t = rank.first_step_t if rank.first_step_t is not None else FOREVER
    sweep = _Sweep(edges, leaves, first_step_t=first_step_t, shutdown_t=shutdown_t)
    low = max(frame.start, min(rank.start, stop))
    tiles = sweep.run(rank.spans, frame.start, low, min(stop, max(low, rank.end)), frame.end)
    training = leaves.code(EFFECTIVE)
    stalls = [(slow.start, slow.end, slow.typical_ns, FOREVER) for slow in sorted(rank.slows)]
    if stalls:
        tiles = _convert(tiles, training, leaves.code("steady/stall"), stalls)
    if rank.progress and rank.progress[-1].wait_ns:
        tiles = _with_waits(tiles, training, leaves.code("steady/data_wait"), rank.progress)
    return _pack(tiles, rank, frame)


def untold_rank(number: int, frame: Frame, devices: int, leaves: LeafTable) -> Tiles:
    """Tiles of a rank that left no journal: it never got past `launch`."""
    tiles: list[_Tile] = []
    before = leaves.code(RESCHEDULE if frame.restart else "start/launch")
    _extend(tiles, frame.start, frame.up, before)
    _extend(tiles, frame.up, frame.stopped, leaves.code("start/launch"))
    _extend(tiles, frame.stopped, frame.end, leaves.code(DETECT))
    starts = array("q", [tile[0] for tile in tiles])
    return Tiles(rank=number, devices=devices, starts=starts, codes=array("l", [tile[2] for tile in tiles]), end=frame.end)


def _shutdown_begin(rank: RankHistory, frame: Frame) -> int:
    """Where the shutdown begins: after the last step of a process that ended in good order."""
    well = frame.done or (rank.exit_t is not None and rank.error is None)
    return rank.last_step_t if well and rank.last_step_t is not None else FOREVER


def _base(rank: RankHistory, frame: Frame, leaves: LeafTable) -> list[tuple[int, int]]:
    """Base states as (begin, code), in order; each lasts until the next begins."""
    shutdown_t = _shutdown_begin(rank, frame)
    exit_t = rank.exit_t if rank.error is None else None
    after_end = leaves.code(DETECT) if rank.died and not frame.done else leaves.code("shutdown/teardown", "waiting for other ranks")
    wanted: list[tuple[int | None, int]] = [
        (frame.start, leaves.code(RESCHEDULE if frame.restart else "start/launch")),
        (frame.up, leaves.code("start/launch")),
        (rank.start, leaves.code("start/launch", "interpreter start")),
        (rank.entered, leaves.code("start/setup")),
        (training_begin(rank), leaves.code(EFFECTIVE)),
        (shutdown_t, leaves.code(UNTRACKED)),
        (exit_t, leaves.code("shutdown/teardown")),
        (None if rank.alive else rank.end, after_end),
    ]
    edges: list[tuple[int, int]] = []
    latest = frame.start
    for begin, code in wanted:
        if begin is not None and begin < FOREVER:
            latest = max(latest, begin)
            if latest < frame.stopped:
                _add_edge(edges, latest, code)
    if frame.stopped < frame.end:
        _add_edge(edges, frame.stopped, leaves.code(DETECT))
    return edges


def _add_edge(edges: list[tuple[int, int]], begin: int, code: int) -> None:
    while edges and edges[-1][0] >= begin:
        edges.pop()
    edges.append((begin, code))


class _Sweep:
    """Lays spans over base states."""

    def __init__(self, edges: list[tuple[int, int]], leaves: LeafTable, *, first_step_t: int, shutdown_t: int) -> None:
        self._edges = edges
        self._leaves = leaves
        self._first_step_t = first_step_t
        self._shutdown_t = shutdown_t
        self._edge = 0
        self._tiles: list[_Tile] = []

    def run(self, spans: list[Span], start: int, low: int, high: int, end: int) -> list[_Tile]:
        """Tiles of [start, end); spans count only within [low, high)."""
        now = start
        heap: list[tuple[int, int, int, Span]] = []
        for order, span in enumerate(sorted(spans, key=itemgetter(0, 1))):
            begin = max(span.start, low)
            if begin >= high or span.end <= begin:
                continue
            now = self._advance(heap, now, begin)
            heapq.heappush(heap, (*_rank_of(span), order, span))
        now = self._advance(heap, now, high)
        self._fill_base(now, end)
        return self._tiles

    def _advance(self, heap: list[tuple[int, int, int, Span]], now: int, until: int) -> int:
        """Emit [now, until) from the strongest span that is open, or the base."""
        while now < until:
            while heap and heap[0][3].end <= now:
                heapq.heappop(heap)
            if not heap:
                self._fill_base(now, until)
                return until
            span = heap[0][3]
            upto = min(span.end, until)
            self._fill_span(span, now, upto)
            now = upto
        return now

    def _fill_span(self, span: Span, begin: int, end: int) -> None:
        for phase, phase_end in ((START, self._first_step_t), (STEADY, self._shutdown_t), (SHUTDOWN, FOREVER)):
            if begin < phase_end:
                upto = min(end, phase_end)
                code = self._leaves.code(leaf_of(span.label.stage, phase), span.label.part)
                _extend(self._tiles, begin, upto, code)
                begin = upto
            if begin >= end:
                return

    def _fill_base(self, begin: int, end: int) -> None:
        edges = self._edges
        while begin < end:
            while self._edge + 1 < len(edges) and edges[self._edge + 1][0] <= begin:
                self._edge += 1
            upto = min(end, edges[self._edge + 1][0]) if self._edge + 1 < len(edges) else end
            _extend(self._tiles, begin, upto, edges[self._edge][1])
            begin = upto


def _rank_of(span: Span) -> tuple[int, int]:
    """Sort key of a span's strength, strongest smallest: the user's before found ones, then the table, then the innermost."""
    if span.label.user:
        return -1, -span.start
    return _PRIORITY_INDEX.get(span.label.stage, len(PRIORITY)), -span.start


def _extend(tiles: list[_Tile], begin: int, end: int, code: int) -> None:
    if begin >= end:
        return
    if tiles and tiles[-1][2] == code and tiles[-1][1] == begin:
        tiles[-1] = (tiles[-1][0], end, code)
    else:
        tiles.append((begin, end, code))


def _convert(tiles: list[_Tile], source: int, target: int, windows: list[tuple[int, int, int, int]]) -> list[_Tile]:
    """Re-label time of `source` as `target`: in each window (begin, end, skip, amount), after the first `skip` ns of it."""
    result: list[_Tile] = []
    index = 0
    for start, end, code in tiles:
        if code != source:
            _extend(result, start, end, code)
            continue
        begin = start
        while begin < end:
            while index < len(windows) and (windows[index][1] <= begin or windows[index][3] <= 0):
                index += 1
            low, high, skip, amount = windows[index] if index < len(windows) else (FOREVER, FOREVER, 0, 0)
            outside = min(end, max(begin, low))
            kept = outside + min(skip, max(0, min(high, end) - outside))
            moved = kept + min(amount, max(0, min(high, end) - kept))
            _extend(result, begin, kept, source)
            _extend(result, kept, moved, target)
            if index < len(windows):
                windows[index] = (low, high, skip - (kept - outside), amount - (moved - kept))
            begin = moved
    return result


def _with_waits(tiles: list[_Tile], training: int, waiting: int, progress: list[Progress]) -> list[_Tile]:
    """Re-label training as waiting for data: between two progress records, first for as long as the process waited between them."""
    result: list[_Tile] = []
    add = result.append
    index, last = 0, len(progress) - 1
    opened, _, wait_then = progress[0]
    closed, owed = opened, 0
    for start, end, code in tiles:
        if code != training:
            add((start, end, code))
            continue
        begin = start
        while begin < end:
            while closed <= begin and index < last:
                index += 1
                opened = closed
                closed, _, wait = progress[index]
                owed, wait_then = wait - wait_then, wait
            if closed <= begin:
                add((begin, end, training))
                break
            if opened > begin:
                begin_next = min(opened, end)
                add((begin, begin_next, training))
                begin = begin_next
                continue
            upto = min(closed, end)
            if owed > 0:
                moved = begin + owed if owed < upto - begin else upto
                add((begin, moved, waiting))
                owed -= moved - begin
                begin = moved
            if begin < upto:
                add((begin, upto, training))
                begin = upto
    return result


def _pack(tiles: list[_Tile], rank: RankHistory, frame: Frame) -> Tiles:
    starts, ends, codes = zip(*tiles, strict=True) if tiles else ((), (), ())
    if not all(map(lt, starts, ends)) or (frame.start, *ends) != (*starts, frame.end):
        raise LawError(f"rank {rank.rank} of attempt {frame.number}: tiles do not cover [{frame.start}, {frame.end}) one after the other")
    helper = frame.first_step_t is not None and not rank.steps and not rank.died and training_begin(rank) is None
    return Tiles(rank=rank.rank, devices=rank.devices, starts=array("q", starts), codes=array("l", codes), end=frame.end, helper=helper)

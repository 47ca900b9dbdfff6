"""Tiles as what a page draws: pieces with a full path, unsaved training told apart, short ones merged, spans sorted into lanes.

Exact until `thin`: the pieces of all ranks add up to the ledger's device time, leaf by leaf. What `thin` returns is for eyes only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ettrain.account.book import split
from ettrain.account.history import Span
from ettrain.account.ledger import Account
from ettrain.account.timeline import Tiles
from ettrain.account.wallview import wall_slices
from ettrain.lifecycle import EFFECTIVE, RESCHEDULE, UNSAVED, leaf_path


class Piece(NamedTuple):
    """One coloured stretch of a track. Times in ns on the job's clock."""

    start: int
    end: int
    path: str
    part: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """Pieces to draw in one row."""

    pieces: list[Piece]
    merged: int
    """How many exact pieces went into merged ones."""


def job_pieces(account: Account) -> list[Piece]:
    """The job's state at each instant, from the first attempt's start to the last one's end."""
    return [Piece(start, end, path, "") for start, end, path in account.ledger.slices]


def rank_pieces(account: Account, number: int, tiles: Tiles) -> Iterator[Piece]:
    """One rank's time in attempt `number`."""
    pairs = account.leaves.pairs
    triples = ((start, end, pairs[code]) for start, end, code in tiles)
    return _pieces(triples, account.lineage.lost, restart=account.frames[number].restart)


def wall_pieces(account: Account, number: int) -> Iterator[Piece]:
    """The job's state during attempt `number`, with the finer labels that the ledger's slices leave out."""
    frame = account.frames[number]
    slices = wall_slices(account.tiles[number], account.leaves, frame.start, frame.end)
    pairs = account.leaves.pairs
    return _pieces(((start, end, pairs[code]) for start, end, code in slices), account.lineage.lost, restart=frame.restart)


def whole_rank(account: Account, rank: int) -> Iterator[Piece]:
    """One rank's time through all attempts, the waits between them included as the device view books them."""
    for number, (frame, ranks) in enumerate(zip(account.frames, account.tiles, strict=True)):
        mine = next((tiles for tiles in ranks if tiles.rank == rank), None)
        if mine is None:
            continue
        yield from rank_pieces(account, number, mine)
        upto = account.frames[number + 1].start if number + 1 < len(account.frames) else account.ledger.end
        if upto > frame.end:
            yield Piece(frame.end, upto, RESCHEDULE, "")


def training_ns(account: Account) -> dict[int, int]:
    """Rank -> time in which it trained, survived or not, over all attempts."""
    training = {code for code, (leaf, _) in enumerate(account.leaves.pairs) if leaf == EFFECTIVE}
    result: dict[int, int] = {}
    for ranks in account.tiles:
        for tiles in ranks:
            spent = sum(end - start for start, end, code in tiles if code in training)
            result[tiles.rank] = result.get(tiles.rank, 0) + spent
    return result


def _pieces(triples: Iterable[tuple[int, int, tuple[str, str]]], lost: list[tuple[int, int]], *, restart: bool) -> Iterator[Piece]:
    """Full paths; training is cut at the windows in which it was lost."""
    for start, end, (leaf, part) in triples:
        if leaf != EFFECTIVE:
            yield Piece(start, end, leaf_path(leaf, restart=restart), part)
            continue
        for low, high, vain in split(start, end, lost):
            yield Piece(low, high, UNSAVED if vain else EFFECTIVE, part)


def thin(pieces: Iterable[Piece], shortest_ns: int) -> Track:
    """Merge pieces shorter than `shortest_ns` into runs that are not.

    A run is drawn as the path to which the runs so far owe most time, so that over a row the colours keep their shares: a wait of
    a tenth of every short step colours every tenth run.

    Args:
        pieces: in order; a gap between two is kept.
    Returns:
        Pieces that cover the same time; a merged one has the part 'n merged'.
    """
    thinner = _Thinner()
    for piece in pieces:
        run = thinner.run
        if run and run[-1].end != piece.start:
            thinner.flush()
        if piece.end - piece.start >= shortest_ns:
            thinner.flush()
            thinner.pieces.append(piece)
            continue
        run.append(piece)
        if run[-1].end - run[0].start >= shortest_ns:
            thinner.flush()
    thinner.flush()
    return Track(pieces=thinner.pieces, merged=thinner.merged)


class _Thinner:
    """The run of short pieces at hand, and what was made of those before."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.run: list[Piece] = []
        self.merged = 0
        self._owed: dict[str, int] = {}

    def flush(self) -> None:
        """Append the run as one piece."""
        run, owed = self.run, self._owed
        if len(run) > 1:
            for piece in run:
                owed[piece.path] = owed.get(piece.path, 0) + piece.end - piece.start
            path = max(dict.fromkeys(piece.path for piece in run), key=lambda key: owed[key])
            owed[path] -= run[-1].end - run[0].start
            self.pieces.append(Piece(run[0].start, run[-1].end, path, f"{len(run)} merged"))
            self.merged += len(run)
        else:
            self.pieces.extend(run)
        run.clear()


def nested_lanes(spans: Iterable[Span]) -> list[list[Span]]:
    """Sort spans into as few lanes as a greedy hand finds in which any two either nest or do not touch."""
    lanes: list[list[Span]] = []
    stacks: list[list[int]] = []
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        for lane, stack in zip(lanes, stacks, strict=True):
            while stack and stack[-1] <= span.start:
                stack.pop()
            if not stack or stack[-1] >= span.end:
                lane.append(span)
                stack.append(span.end)
                break
        else:
            lanes.append([span])
            stacks.append([span.end])
    return lanes

"""What a start consists of: the first attempt's, and the mean of the restarts. Wall view, leaf by leaf and part by part.

The first attempt's rows add up to Time to Start exactly; a restart's begin with its attempt, so `detect` is not among them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from ettrain.account.ledger import Account
from ettrain.lifecycle import EFFECTIVE, UNSAVED
from ettrain.report.tracks import wall_pieces

SMALL: Final = 200
"""Parts that take less than this fraction (1/200) of the start share one row."""
OTHER: Final = "smaller parts"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRow:
    """One stage, or one part of a stage."""

    stage: str
    part: str
    first_ns: int
    restart_ns: int
    """Sum over all restarts counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Startup:
    """The start of a job and of its later attempts. Times in ns."""

    rows: tuple[StartRow, ...]
    """In the order in which the first attempt, then the restarts, came to them."""
    first_ns: int
    restart_ns: int
    restarts: int
    """Later attempts that reached a first step."""


def startup_of(account: Account) -> Startup:
    """Take the starts of a job apart."""
    first: dict[tuple[str, str], int] = {}
    again: dict[tuple[str, str], int] = {}
    restarts = 0
    for number, frame in enumerate(account.frames):
        end = frame.stopped if frame.first_step_t is None else min(frame.first_step_t, frame.stopped)
        if frame.restart and frame.first_step_t is None:
            continue
        restarts += frame.restart
        target = again if frame.restart else first
        for piece in wall_pieces(account, number):
            if piece.start >= end:
                break
            if piece.path in (EFFECTIVE, UNSAVED):
                continue
            key = (piece.path.rsplit("/", 1)[-1], piece.part)
            target[key] = target.get(key, 0) + min(piece.end, end) - piece.start
    rows = _rows(first, again)
    return Startup(rows=rows, first_ns=sum(first.values()), restart_ns=sum(again.values()), restarts=restarts)


def _rows(first: dict[tuple[str, str], int], again: dict[tuple[str, str], int]) -> tuple[StartRow, ...]:
    """One row per stage and part; small parts of a stage share one."""
    first_limit, again_limit = sum(first.values()) // SMALL, sum(again.values()) // SMALL
    keys = list(dict.fromkeys([*first, *again]))
    small = {key for key in keys if key[1] and first.get(key, 0) <= first_limit and again.get(key, 0) <= again_limit}
    crowded = {stage for stage, count in Counter(stage for stage, _ in small).items() if count > 1}
    rows: dict[tuple[str, str], StartRow] = {}
    for key in keys:
        stage, part = key
        ours, theirs = first.get(key, 0), again.get(key, 0)
        if key in small and stage in crowded:
            part = OTHER
        before = rows.get((stage, part))
        if before is not None:
            ours, theirs = ours + before.first_ns, theirs + before.restart_ns
        rows[stage, part] = StartRow(stage=stage, part=part, first_ns=ours, restart_ns=theirs)
    return tuple(rows.values())

"""What a start consists of: the first attempt's, and the mean of the restarts. Wall view, leaf by leaf and part by part.

The first attempt's rows add up to Time to Start exactly; a restart's begin with its attempt, so `detect` is not among them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ettrain.account.ledger import Account
from ettrain.lifecycle import EFFECTIVE, UNSAVED
from ettrain.report.tracks import wall_pieces


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
        if number and frame.first_step_t is None:
            continue
        restarts += number > 0
        target = again if number else first
        for piece in wall_pieces(account, number):
            if piece.start >= end:
                break
            if piece.path in (EFFECTIVE, UNSAVED):
                continue
            key = (piece.path.rsplit("/", 1)[-1], piece.part)
            target[key] = target.get(key, 0) + min(piece.end, end) - piece.start
    order = list(dict.fromkeys([*first, *again]))
    rows = tuple(StartRow(stage=k[0], part=k[1], first_ns=first.get(k, 0), restart_ns=again.get(k, 0)) for k in order)
    return Startup(rows=rows, first_ns=sum(first.values()), restart_ns=sum(again.values()), restarts=restarts)

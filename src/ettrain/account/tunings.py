"""A job's searches among kernels, ranked by what they took; and the winners worth keeping. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace

from ettrain.account.history import JobHistory, Tuning
from ettrain.tuned import Tuned


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """One kernel, over all ranks and attempts."""

    best: Tuned
    """The winner: where ranks or attempts found different ones, the one found most often, then the fastest."""
    wall_ns: int
    """Per attempt the rank that searched longest, summed."""
    searches: int
    """Times it was searched for, by any rank."""
    cached: int
    """Times its timings were known from an earlier search."""
    pinned: int
    """Times a file's winner was taken instead."""
    winners: int
    """Different winners found: more than one says that they are close."""
    ignored: str
    """Why a pin did not fit; '' = none was ignored."""


def searches_of(job: JobHistory) -> list[Searched]:
    """All kernels tuned, longest search first."""
    found: dict[tuple[str, str, tuple[str, ...], str, str], list[tuple[int, int, Tuning]]] = defaultdict(list)
    for number, attempt in enumerate(job.attempts):
        for rank in attempt.ranks:
            for tuning in rank.tunings:
                found[tuning.tuned.key].append((number, rank.rank, tuning))
    return sorted(map(_searched, found.values()), key=lambda one: (-one.wall_ns, one.best.key))


def _searched(tunings: list[tuple[int, int, Tuning]]) -> Searched:
    spent: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for number, rank, tuning in tunings:
        if tuning.state == "searched":
            spent[number][rank] += tuning.end - tuning.start
    states = Counter(tuning.state for _, _, tuning in tunings)
    measured = [tuning.tuned for _, _, tuning in tunings if tuning.state in ("searched", "cached")]
    votes = Counter((tuned.winner, tuned.config) for tuned in measured)
    candidates = measured or [tuning.tuned for _, _, tuning in tunings]
    best = min(candidates, key=lambda tuned: (-votes[tuned.winner, tuned.config], tuned.best_ms or 0.0))
    longest = max((tuned.search_s for tuned in candidates), default=0.0)
    return Searched(
        best=replace(best, search_s=longest),
        wall_ns=sum(max(by_rank.values()) for by_rank in spent.values()),
        searches=states["searched"],
        cached=states["cached"],
        pinned=states["pinned"],
        winners=len(votes),
        ignored=next((tuning.reason for _, _, tuning in tunings if tuning.state == "ignored"), ""),
    )


def worth_keeping(searches: list[Searched]) -> list[Tuned]:
    """What a file of winners should hold: all that was measured, and the pins that were taken."""
    return [one.best for one in searches if one.searches or one.cached or one.pinned]

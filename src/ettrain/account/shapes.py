"""What torch.compile compiled again in a job, at which price, and which of it would be needless under the value proposed.

Pure. What varied is `dynamic`, the words of the value are `sources`, torch's reasons `recompiles`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ettrain.account.dynamic import VARIED, Knowledge, learn, merged, place_of, value_of, wanted
from ettrain.account.history import Compile, Dims, JobHistory, RankHistory
from ettrain.account.recompiles import CURABLE, NUMBER, SIZE, ZERO_ONE, Cause, cause_of, user_name
from ettrain.account.sources import Place, entry_for, joined, marks


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompile:
    """Compilations of one function for one cause, over all ranks and attempts."""

    function: str
    where: str
    cause: Cause
    reason: str
    """torch's own words, the first time."""
    places: tuple[Place, ...]
    """What was found to vary, as sources; empty where the cause is no source."""
    was: tuple[str, ...]
    """What each of them had been before."""
    curable: bool
    """Whether the value proposed makes it needless."""
    refused: bool
    """Nothing was compiled: the limit of compilations was reached."""
    count: int
    ranks: int
    attempts: tuple[int, ...]
    wall_ns: int
    """Per attempt the rank that spent most on it, summed: forward and backward, as ranks compile at the same time."""


class Clash(NamedTuple):
    """A place that cannot be marked in one function without being marked in another."""

    place: Place
    stays_in: tuple[str, ...]
    """Functions in which it stays the same: `name (file:line)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """What is known of a job's dynamic shapes."""

    recompiles: tuple[Recompile, ...]
    """Dearest first."""
    first_ns: int
    """First compilations, by the same rule as `Recompile.wall_ns`."""
    first_count: int
    """Functions compiled, a rank's counted once."""
    value: str
    """The proposed value, '' where there is nothing to mark: what the last attempt ran under, and what is to be added to it."""
    marked: tuple[Place, ...]
    clashes: tuple[Clash, ...]
    """What varied in one function, and stayed the same under the same name in another: left alone."""
    wider: str
    """A value that marks these as well; '' where there are none."""
    applied: tuple[str, ...]
    """Values that attempts ran under."""


def shapes_of(job: JobHistory) -> Shapes:
    """Everything about a job's recompilations."""
    known = merged(learn(rank.dims, rank.compiles, rank.dynamic_sources) for attempt in job.attempts for rank in attempt.ranks)
    applied = [rank.dynamic_sources for attempt in job.attempts for rank in attempt.ranks if rank.dynamic_sources]
    given = applied[-1] if applied else ""
    value = joined(given, value_of(known, given))
    table = _Table(known, value)
    for number, attempt in enumerate(job.attempts):
        for rank in attempt.ranks:
            table.take(number, rank)
    varied = sorted(wanted(known), key=str)
    return Shapes(
        recompiles=table.recompiles(),
        first_ns=_wall_ns(table.first),
        first_count=len(table.functions),
        value=value,
        marked=tuple(place for place in varied if marks(value, place)),
        clashes=tuple(Clash(place, _stays_in(known, place)) for place in varied if not marks(value, place)),
        wider=joined(given, value_of(_without_clashes(known), given)) if any(not marks(value, place) for place in varied) else "",
        applied=tuple(sorted(set(applied))),
    )


def _stays_in(known: Knowledge, place: Place) -> tuple[str, ...]:
    """Functions that forbid to mark the place, `name (file:line)`."""
    entry = entry_for(place)
    return tuple(
        f"{name} ({where})"
        for (name, where), states in sorted(known.items())
        if any(state not in (VARIED, ZERO_ONE) and other.source == place.source and marks(entry, other) for other, state in states.items())
    )


def _without_clashes(known: Knowledge) -> Knowledge:
    """The same, as if what varied anywhere had varied everywhere."""
    varied = wanted(known)
    return {function: {place: VARIED if place in varied else state for place, state in states.items()} for function, states in known.items()}


class _Cost(NamedTuple):
    attempt: int
    rank: int
    ns: int


class _Key(NamedTuple):
    """What makes two compilations the same row of the table."""

    function: str
    where: str
    kind: str
    name: str
    dim: int | None
    places: tuple[Place, ...]
    curable: bool
    refused: bool


@dataclass(slots=True)
class _Row:
    cause: Cause
    reason: str
    was: tuple[str, ...]
    costs: list[_Cost] = field(default_factory=list)


class _Table:
    """Rows under way."""

    def __init__(self, known: Knowledge, value: str) -> None:
        self.known, self.value = known, value
        self.rows: dict[_Key, _Row] = {}
        self.first: list[_Cost] = []
        self.functions: set[tuple[str, str]] = set()

    def take(self, attempt: int, rank: RankHistory) -> None:
        """Add one rank's compilations; a lazy backward belongs to its forward."""
        changed: dict[int, list[Dims]] = defaultdict(list)
        for told in rank.dims:
            if told.was is not None:
                changed[told.t].append(told)
        again = {compile_.id: compile_ for compile_ in rank.compiles if compile_.reason}
        backward: dict[str, int] = defaultdict(int)
        for compile_ in rank.compiles:
            ns = compile_.end - compile_.start
            if compile_.reason:
                continue
            if compile_.id and compile_.id in again:
                backward[compile_.id] += ns
                continue
            self.first.append(_Cost(attempt, rank.rank, ns))
            if compile_.where:
                self.functions.add((compile_.function, compile_.where))
        for compile_ in rank.compiles:
            if compile_.reason:
                ns = compile_.end - compile_.start + backward.pop(compile_.id, 0)
                self._row(compile_, changed[compile_.start]).costs.append(_Cost(attempt, rank.rank, ns))

    def _row(self, compile_: Compile, changed: list[Dims]) -> _Row:
        """The row that this compilation belongs to."""
        states = self.known.get((compile_.function, compile_.where), {})
        cause = cause_of(compile_.reason)
        found = [change for told in changed for change in _changes(told)]
        other = next((told for told in changed if told.seen in ("float", "rank", "?")), None)
        if other is not None and cause.kind in (*CURABLE, ZERO_ONE):  # it changed in the same call
            cause = Cause("rank" if other.seen == "rank" else "value", user_name(other.source), None, "", "")
        if not found and cause.kind in (*CURABLE, ZERO_ONE):
            place = place_of(cause, states)
            found = [] if place is None else [(place, cause.expected)]
        elif found and all(was in ("0", "1") for _, was in found) and cause.kind == SIZE:
            cause = cause._replace(kind=ZERO_ONE)  # a graph for more was needed all the same
        places = tuple(place for place, _ in found) if cause.kind in (SIZE, NUMBER, ZERO_ONE) else ()
        if cause.kind == SIZE and places and all(states.get(place) == ZERO_ONE for place in places):
            cause = cause._replace(kind=ZERO_ONE)
        curable = cause.kind in CURABLE and bool(places) and all(marks(self.value, place) for place in places) and not compile_.refused
        key = _Key(compile_.function, compile_.where, cause.kind, cause.name, cause.dim, places, curable, compile_.refused)
        return self.rows.setdefault(key, _Row(cause, compile_.reason, tuple(was for _, was in found)))

    def recompiles(self) -> tuple[Recompile, ...]:
        """The rows, dearest first."""
        made = [
            Recompile(
                function=key.function,
                where=key.where,
                cause=row.cause,
                reason=row.reason,
                places=key.places,
                was=row.was if key.places else (),
                curable=key.curable,
                refused=key.refused,
                count=len(row.costs),
                ranks=len({cost.rank for cost in row.costs}),
                attempts=tuple(sorted({cost.attempt for cost in row.costs})),
                wall_ns=_wall_ns(row.costs),
            )
            for key, row in self.rows.items()
        ]
        return tuple(sorted(made, key=lambda recompile: (-recompile.wall_ns, recompile.function)))


def _changes(told: Dims) -> Iterator[tuple[Place, str]]:
    """(place, what it was) of what the compilation found to differ."""
    if isinstance(told.seen, tuple) and isinstance(told.was, tuple):
        for dim, (size, before) in enumerate(zip(told.seen, told.was, strict=False)):
            if size is None and before is not None:
                yield Place(told.source, dim), str(before)
    elif told.seen == "int":
        yield Place(told.source), str(told.was)


def _wall_ns(costs: Iterable[_Cost]) -> int:
    """Per attempt the dearest rank, summed: ranks compile at the same time."""
    spent: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for cost in costs:
        spent[cost.attempt][cost.rank] += cost.ns
    return sum(max(by_rank.values()) for by_rank in spent.values())

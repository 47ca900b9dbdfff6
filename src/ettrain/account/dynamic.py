"""What varied from one call of a compiled function to the next, and what never did: which sources to make dynamic from the start.

Two rules decide what may be marked: it was seen to vary in a way that one dynamic graph would have served, and no function in which
it was seen to stay the same knows it by the same name. Pure; the words of the value are `sources`, torch's reasons `recompiles`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from ettrain.account.history import Compile, Dims
from ettrain.account.recompiles import CURABLE, ZERO_ONE, Cause, cause_of, source_of, user_name
from ettrain.account.sources import Place, marks, shortest

VARIED, STAYED = "varied", "stayed"
STRENGTH: Final = (STAYED, "?", "float", "rank", ZERO_ONE, VARIED)
"""Where two processes differ about a place, the later in this list is right."""

MORE: Final = "*"
"""Stands for sources that were too many to be written down: then no expression may stand for several names."""

Function = tuple[str, str]
"""Name and `file:line`."""
Knowledge = dict[Function, dict[Place, str]]
"""How each place of each function behaved."""


def learn(dims: Iterable[Dims], compiles: Iterable[Compile], applied: str | None) -> Knowledge:
    """What one process teaches.

    Args:
        dims: what its compilations told, in order.
        compiles: its compilations.
        applied: dynamic sources it ran under: what these mark may have varied unseen, so it is not known to have stayed.
    """
    causes = {compile_.start: cause_of(compile_.reason) for compile_ in compiles if compile_.reason}
    lesson = _Lesson()
    for told in dims:
        lesson.take(told, causes.get(told.t))
    for compile_ in compiles:
        if compile_.start in causes:
            lesson.compare((compile_.function, compile_.where), causes[compile_.start])
    return lesson.known(applied)


@dataclass(slots=True)
class _Values:
    """Sizes that a place is known to have had."""

    first: int | None = None
    """None = not known."""
    sizes: set[int] = field(default_factory=set)
    more: bool = False
    """There were others that nobody wrote down."""

    def needs_one_graph(self) -> bool:
        """Whether one graph for all sizes from 2 on would have served: torch always compiles for 0 and for 1 apart."""
        return self.more or self.first is None or self.first < 2 or len([size for size in self.sizes if size >= 2]) > 1


class _Lesson:
    def __init__(self) -> None:
        self.states: Knowledge = defaultdict(dict)
        self.values: dict[tuple[Function, Place], _Values] = defaultdict(_Values)

    def take(self, told: Dims, cause: Cause | None) -> None:
        """One source, as a compilation found it."""
        function = (told.function, told.where)
        states = self.states[function]
        if isinstance(told.seen, tuple):
            before = told.was if isinstance(told.was, tuple) and len(told.was) == len(told.seen) else None
            for dim, size in enumerate(told.seen):
                place = Place(told.source, dim)
                if size is None and states.get(place) != VARIED:
                    self._varied(function, place, None if before is None else before[dim], cause)
                states[place] = STAYED if size is not None else VARIED
        elif told.seen == "rank":
            for place in [place for place in states if place.source == told.source]:
                states[place] = "rank"
        elif isinstance(told.seen, str):
            states[Place(told.source)] = VARIED if told.seen == "int" else told.seen
            self.values[function, Place(told.source)].more = True
        else:
            states[Place(told.source)] = STAYED

    def _varied(self, function: Function, place: Place, before: int | None, cause: Cause | None) -> None:
        values = self.values[function, place]
        values.first = before
        values.sizes |= set() if before is None else {before}
        values.more = cause is None or not cause.actual.isdigit() or (cause.name, cause.dim) != (user_name(place.source), place.dim)

    def compare(self, function: Function, cause: Cause) -> None:
        """A graph did not fit: two more sizes that the place is known to have had.

        Where torch's profile does not say so (a compilation refused, a torch without one), this alone shows that it varied.
        """
        if cause.kind not in (*CURABLE, ZERO_ONE) or not cause.expected:
            return
        place = place_of(cause, self.states.get(function, {}))
        if place is None:
            return
        values = self.values[function, place]
        sizes = [int(text) for text in (cause.expected, cause.actual) if text.isdigit()]
        if self.states[function].get(place, STAYED) == STAYED:
            self.states[function][place] = VARIED
            values.first = sizes[0] if sizes else None
        values.sizes.update(sizes)
        values.more |= len(sizes) < 2

    def known(self, applied: str | None) -> Knowledge:
        """The outcome."""
        for (function, place), values in self.values.items():
            if self.states[function].get(place) == VARIED and not values.needs_one_graph():
                self.states[function][place] = ZERO_ONE
        return {
            function: {
                place: state
                for place, state in states.items()
                if state != STAYED or not (applied is None or (applied and marks(applied, place)))
            }
            for function, states in self.states.items()
        }


def place_of(cause: Cause, states: Iterable[Place]) -> Place | None:
    """The place that a cause speaks of: among those known of the function, else by its name alone."""
    for place in states:
        if place.dim == cause.dim and user_name(place.source) == cause.name:
            return place
    source = source_of(cause.name)
    return None if source is None else Place(source, cause.dim)


def merged(lessons: Iterable[Knowledge]) -> Knowledge:
    """What several processes, attempts or jobs teach together."""
    union: Knowledge = {}
    for lesson in lessons:
        for function, states in lesson.items():
            mine = union.setdefault(function, {})
            for place, state in states.items():
                mine[place] = max(state, mine.get(place, STAYED), key=_strength)
    return union


def updated(old: Knowledge, new: Knowledge) -> Knowledge:
    """Earlier knowledge and a later job's. Where a function has moved within its file, only what varied in it is still believed."""
    where_now: dict[tuple[str, str], set[str]] = defaultdict(set)
    for name, where in new:
        where_now[name, where.rpartition(":")[0]].add(where)
    believed: Knowledge = {}
    for (name, where), states in old.items():
        moved = where not in where_now.get((name, where.rpartition(":")[0]), {where})
        believed[name, where] = {place: state for place, state in states.items() if not moved or state == VARIED}
    return merged([believed, new])


def _strength(state: str) -> int:
    return STRENGTH.index(state) if state in STRENGTH else 0


def value_of(known: Knowledge, given: str = "") -> str:
    """The shortest value that marks what varied and nothing that did not; '' where there is nothing to mark.

    Args:
        known: what is known.
        given: what is marked already, and need not be again.
    """
    places = {place for place in wanted(known) if not (given and marks(given, place))}
    never = [place for states in known.values() for place, state in states.items() if state not in (VARIED, ZERO_ONE)]
    return shortest(places, never, exact=any(place.source == MORE for place in never))


def wanted(known: Knowledge) -> set[Place]:
    """What varied in some function."""
    return {place for states in known.values() for place, state in states.items() if state == VARIED}

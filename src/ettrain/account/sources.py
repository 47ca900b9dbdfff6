"""The language of TORCH_COMPILE_DYNAMIC_SOURCES: what a value marks, and the shortest value that marks just what it should.

torch drops spaces, splits at commas, takes `:N` at an entry's end as a dimension, and marks a source whose name is the entry, or
begins with a match of the entry read as a regular expression. An entry that is no valid expression is an error inside the training,
so none is ever proposed. Pure text; not here: where the sources come from (`dynamic`).
"""

from __future__ import annotations

import re
import warnings
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

VARIABLE: Final = "TORCH_COMPILE_DYNAMIC_SOURCES"
_DIM: Final = re.compile(r"^(.+):(\d+)$")
_PLAIN: Final = re.compile(r"[LG]\['\w+'\](\[\d+\]|\['\w+'\]|\.\w+)*")
"""Read as an expression such a name is valid, and after its first letter wants a character that is no bracket: it matches no source."""
_NUMBER: Final = re.compile(r"\d+")
_FIRST: Final = re.compile(r"(L\[')(\w+)('\])")
MANY: Final = 400
"""With more sources than this, only the plain list is looked for."""


class Place(NamedTuple):
    """A dimension of a tensor, or a number."""

    source: str
    dim: int | None = None
    """None = the source is a number."""

    def __str__(self) -> str:
        return self.source if self.dim is None else f"{self.source}:{self.dim}"


def entries_of(value: str) -> list[tuple[str, int | None]]:
    """(pattern, dimension or None) of each entry, as torch reads the value."""
    found: list[tuple[str, int | None]] = []
    for entry in value.replace(" ", "").split(","):
        match = _DIM.match(entry)
        if entry:
            found.append((match[1], int(match[2])) if match else (entry, None))
    return found


def is_valid(value: str) -> bool:
    """Whether torch can use the value: every entry compiles, without so much as a warning."""
    return all(_compiled(pattern) is not None for pattern, _ in entries_of(value))


def marks(value: str, place: Place) -> bool:
    """Whether the value makes the place dynamic; an entry that is no expression marks its own name only."""
    return any(_entry_marks(pattern, dim, place) for pattern, dim in entries_of(value))


def _entry_marks(pattern: str, dim: int | None, place: Place) -> bool:
    if place.dim is not None and dim not in (None, place.dim):
        return False
    if pattern == place.source:
        return True
    expression = _compiled(pattern)
    return expression is not None and expression.match(place.source) is not None


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str] | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return re.compile(pattern)
    except (re.error, Warning, OverflowError, RecursionError):
        return None


def joined(first: str, second: str) -> str:
    """A value that marks what either marks."""
    return ",".join(filter(None, (first, second)))


def can_be_named(source: str) -> bool:
    """Whether an entry can stand for the source at all: an environment variable holds printable text."""
    return bool(source) and source.isprintable()


def entry_for(place: Place) -> str:
    """An entry that marks this place and no other: the name itself where torch takes it as one, else escaped."""
    dim = "" if place.dim is None else f":{place.dim}"
    return (place.source if _PLAIN.fullmatch(place.source) else f"{_escaped(place.source)}$") + dim


def _escaped(text: str) -> str:
    return re.escape(text).replace("\\ ", r"\x20").replace(" ", r"\x20").replace(",", r"\x2c")


# ---- the shortest value


@dataclass(frozen=True, slots=True)
class _Candidate:
    entry: str
    places: frozenset[Place]


def shortest(wanted: Collection[Place], never: Collection[Place], *, exact: bool = False) -> str:
    """The shortest value found that marks every place wanted and none of `never`; where both hold a place, `never` wins.

    Args:
        wanted: places to make dynamic.
        never: places that must stay as they are.
        exact: not all places are known, so every entry must name its own alone.
    Returns:
        The value, '' where nothing can be marked. It is checked against the language before it is handed out.
    """
    forbidden = frozenset(never)
    kept = _by_source(forbidden)
    nameable = {place for place in wanted if can_be_named(place.source)}
    targets = {place for place in nameable if not any(marks(entry_for(place), other) for other in kept[place.source])}
    singles = [_Candidate(entry_for(place), frozenset([place])) for place in sorted(targets, key=_order)]
    plain = ",".join(candidate.entry for candidate in singles)
    if exact or len(targets) > MANY:
        return plain
    candidates = [*singles, *_whole(targets, kept), *_wider(targets, forbidden)]
    chosen = ",".join(sorted(_cover(targets, candidates)))
    return min((value for value in (chosen, plain) if _is_right(value, targets, forbidden)), key=len, default="")


def _by_source(places: Iterable[Place]) -> defaultdict[str, set[Place]]:
    found: defaultdict[str, set[Place]] = defaultdict(set)
    for place in places:
        found[place.source].add(place)
    return found


def _order(place: Place) -> tuple[str, int]:
    return place.source, -1 if place.dim is None else place.dim


def _is_right(value: str, targets: Collection[Place], forbidden: Collection[Place]) -> bool:
    return is_valid(value) and all(marks(value, place) for place in targets) and not any(marks(value, place) for place in forbidden)


def _whole(targets: Collection[Place], kept: dict[str, set[Place]]) -> Iterator[_Candidate]:
    """Entries that stand for a tensor with all its dimensions."""
    for source, places in _by_source(targets).items():
        if len(places) > 1 and not kept.get(source):
            yield _Candidate(entry_for(Place(source)), frozenset(places))


def _wider(targets: Collection[Place], forbidden: Collection[Place]) -> Iterator[_Candidate]:
    """Entries that stand for several sources, and for nothing that is forbidden."""
    proposed: dict[tuple[str, int | None], None] = {}
    for pattern, dims in _groups(_by_source(targets)):
        proposed.update(dict.fromkeys((pattern, dim) for dim in (None, *dims)))
    for pattern, dim in proposed:
        if _compiled(pattern) is not None and not any(_entry_marks(pattern, dim, place) for place in forbidden):
            places = frozenset(place for place in targets if _entry_marks(pattern, dim, place))
            yield _Candidate(pattern if dim is None else f"{pattern}:{dim}", places)


def _groups(sources: dict[str, set[Place]]) -> Iterator[tuple[str, set[int]]]:
    """(pattern, dimensions) of names that differ in numbers only, and of names that differ in their first word only."""
    numbered: dict[str, set[int]] = defaultdict(set)
    counted: dict[tuple[str, str], dict[str, set[int]]] = defaultdict(dict)
    words: dict[tuple[str, str], dict[str, set[int]]] = defaultdict(dict)
    for source, places in sources.items():
        dims = {place.dim for place in places if place.dim is not None}
        numbers = _NUMBER.findall(source)
        if numbers:
            numbered[f"{_with_numbers(source)}$"] |= dims
        if len(numbers) == 1:
            before, after = _NUMBER.split(source)
            counted[_escaped(before), _escaped(after)][numbers[0]] = dims
        first = _FIRST.match(source)
        if first:
            words[r"L\['", rf"'\]{_escaped(source[first.end() :])}"][first[2]] = dims
    yield from numbered.items()
    for (before, after), named in (*counted.items(), *words.items()):
        for common in {frozenset(dims) for dims in named.values()}:
            some = sorted(word for word, theirs in named.items() if common <= theirs)
            if len(some) > 1:
                yield f"{before}({'|'.join(some)}){after}$", set(common)


def _with_numbers(source: str) -> str:
    """The name escaped, each number in it any number."""
    return r"\d+".join(_escaped(part) for part in _NUMBER.split(source))


def _cover(targets: Collection[Place], candidates: list[_Candidate]) -> list[str]:
    """Entries that together stand for all targets: the cheapest per place first, then without those that others make needless."""
    left = set(targets)
    chosen: list[_Candidate] = []
    while left:
        best = min(
            (candidate for candidate in candidates if candidate.places & left),
            key=lambda candidate: (len(candidate.entry) + 1) / len(candidate.places & left),
        )
        chosen.append(best)
        left -= best.places
    for candidate in sorted(chosen, key=lambda candidate: -len(candidate.entry)):
        others = [other for other in chosen if other is not candidate]
        if candidate.places <= frozenset().union(*(other.places for other in others)):
            chosen = others
    return [candidate.entry for candidate in chosen]

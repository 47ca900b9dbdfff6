"""Nested state dicts, and the flat keys that DCP makes of them. DCP's flat keys say every key of a dict as text; the live object knows better."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

Way = tuple[Any, ...]


def ways(value: Any, *, name: str) -> dict[str, Way]:
    """Flat key -> the keys and list places that lead there, for everything in `value`, which lies under `name`."""
    return {".".join(map(str, (name, *way))): way for way in _walk(value, ())}


def _walk(value: Any, way: Way) -> Iterator[Way]:
    yield way
    inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    for key, one in inner:
        yield from _walk(one, (*way, key))


def copied(value: Any) -> Any:
    """The same dicts and lists anew, with the same values in them."""
    if isinstance(value, Mapping):
        return {key: copied(one) for key, one in value.items()}
    return [copied(one) for one in value] if isinstance(value, list) else value


def put(root: Any, way: Way, value: Any) -> None:
    """Set the value that `way` leads to; dicts and lists on the way are made where they are missing."""
    for key, following in pairwise(way):
        root = _entered(root, key, following)
    _set(root, way[-1], value)


def _entered(root: Any, key: Any, following: Any) -> Any:
    there = key < len(root) if isinstance(root, list) else key in root
    if not there or not isinstance(root[key], (dict, list)):
        _set(root, key, [] if type(following) is int else {})
    return root[key]


def _set(root: Any, key: Any, value: Any) -> None:
    if isinstance(root, list) and key >= len(root):
        root.extend([None] * (key + 1 - len(root)))
    root[key] = value


def few(names: Sequence[str]) -> str:
    """Some names for a message."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

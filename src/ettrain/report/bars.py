"""Terminal building stones: ink, bars over a time scale, stacked bars, wrapped sentences. They know groups, not jobs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ettrain.report.palette import BY_KEY, GROUPS, Group, group_of
from ettrain.report.units import cells, clip, pad, unbroken

_BOLD: Final = "1"
_DIM: Final = "2"


@dataclass(frozen=True, slots=True)
class Ink:
    """Paints, or leaves the text alone. Painted texts are never measured or cut: do that first."""

    colour: bool

    def bold(self, text: str) -> str:
        """Headings and the number that matters."""
        return self._sgr(_BOLD, text)

    def dim(self, text: str) -> str:
        """Explanations."""
        return self._sgr(_DIM, text)

    def group(self, group: Group, text: str) -> str:
        """A text in its group's colour."""
        return self._sgr(f"38;5;{group.ansi}", text)

    def warn(self, text: str) -> str:
        """What a reader must not miss."""
        return self._sgr(f"1;38;5;{BY_KEY['detect'].ansi}", text)

    def _sgr(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and text else text


def heading(title: str, ink: Ink) -> list[str]:
    """A section's head."""
    return ["", ink.bold(title)]


def wrapped(text: str, width: int, *, first: str = "  ", rest: str = "  ") -> list[str]:
    """A sentence on as many lines as it needs; a number keeps its unit."""
    lines = textwrap.wrap(unbroken(text), max(20, width), initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
    return [clip(line.replace("\u00a0", " "), max(20, width)) for line in lines]


def stacked(amounts: dict[str, int], width: int, ink: Ink) -> str:
    """A bar that is all of them together: one stretch per group, as long as its share; what is not nothing gets a column.

    Args:
        amounts: group -> ns.
    """
    present = [(group, amounts[group.key]) for group in GROUPS if amounts.get(group.key)]
    whole = sum(ns for _, ns in present)
    if not whole or width <= 0:
        return ""
    columns = [max(1, width * ns // whole) for _, ns in present]
    largest = max(range(len(present)), key=lambda index: present[index][1])
    columns[largest] = max(1, columns[largest] + width - sum(columns))
    return "".join(ink.group(group, group.glyph * count) for (group, _), count in zip(present, columns, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A time scale: `width` columns from `start` to `end` (ns)."""

    start: int
    end: int
    width: int

    def column(self, t: int) -> int:
        """Column in which an instant lies."""
        span = max(1, self.end - self.start)
        return min(self.width - 1, max(0, (t - self.start) * self.width // span))

    def edge(self, column: int) -> int:
        """Instant at which a column begins."""
        return self.start + (self.end - self.start) * column // self.width


def life_bar(slices: Sequence[tuple[int, int, str]], scale: Scale, ink: Ink) -> str:
    """Slices (start, end, path) in their places on the scale; a column shows the group that takes most of it.

    A slice that reaches into the scale at all marks at least one column, so that no attempt is invisible.
    """
    spent: list[dict[str, int]] = [{} for _ in range(scale.width)]
    for start, end, path in slices:
        key = group_of(path).key
        for column in range(scale.column(start), scale.column(max(start, end - 1)) + 1):
            low, high = max(start, scale.edge(column)), min(end, scale.edge(column + 1))
            spent[column][key] = spent[column].get(key, 0) + max(high - low, 0)
    keys = [max(column, key=lambda key: column[key]) if column else "" for column in spent]
    return _runs(keys, ink).rstrip()


def _runs(keys: list[str], ink: Ink) -> str:
    pieces: list[str] = []
    at = 0
    while at < len(keys):
        upto = at
        while upto < len(keys) and keys[upto] == keys[at]:
            upto += 1
        group = BY_KEY.get(keys[at])
        pieces.append(" " * (upto - at) if group is None else ink.group(group, group.glyph * (upto - at)))
        at = upto
    return "".join(pieces)


def legend(keys: Iterable[str], width: int, ink: Ink, *, indent: str = "  ") -> list[str]:
    """What the glyphs mean, for the groups that occur."""
    wanted = set(keys)
    lines: list[str] = []
    line, used = "", 0
    for group in GROUPS:
        if group.key not in wanted:
            continue
        size = cells(group.glyph) + 1 + cells(group.title) + 3
        if used and len(indent) + used + size > width + 3:
            lines.append(indent + line.rstrip())
            line, used = "", 0
        line += f"{ink.group(group, group.glyph)} {group.title}   "
        used += size
    return [*lines, indent + line.rstrip()] if line else lines


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    title: str
    width: int
    right: bool = False


def row(columns: Sequence[Column], values: Sequence[str], *, indent: str = "  ") -> str:
    """One line of a table, cut and padded to its columns."""
    texts = [pad(value, column.width, right=column.right) for column, value in zip(columns, values, strict=True)]
    return (indent + "  ".join(texts)).rstrip()


def head(columns: Sequence[Column], ink: Ink, *, indent: str = "  ") -> str:
    """A table's head."""
    return ink.dim(row(columns, [column.title for column in columns], indent=indent))

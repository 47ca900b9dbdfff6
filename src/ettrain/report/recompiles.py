"""`ett report --recompiles`: what torch.compile compiled again, why, at which price, and what to set so that it does not next time."""

from __future__ import annotations

import re
import shlex
from pathlib import PurePath
from typing import Final

from ettrain.account.recompiles import NUMBER, SIZE, ZERO_ONE
from ettrain.account.shapes import Recompile, Shapes, shapes_of
from ettrain.account.sources import VARIABLE
from ettrain.report.bars import Column, head, heading, row, wrapped
from ettrain.report.notes import COMMAND_LIMIT
from ettrain.report.sections import Sheet
from ettrain.report.units import clean, clip, duration, plural, seconds

SHOWN: Final = 20
PLACES_SHOWN: Final = 4

HINTS: Final[dict[str, str]] = {
    "limit": "torch compiled this function too often and runs it uncompiled where no graph fits: cure the causes above it, "
    "or raise torch._dynamo.config.recompile_limit",
    "clash": "the same name stays the same in another function, and a dynamic source knows no functions; see below",
    ZERO_ONE: "torch compiles sizes 0 and 1 apart, whatever is dynamic: avoid such a batch (drop_last=True, or pad it)",
    "rank": "the number of dimensions changes: give the tensor one shape (unsqueeze), or compile the two uses apart",
    "dtype": "the dtype changes: cast before the call",
    "stride": "the memory layout changes: call .contiguous() before, or always pass the same layout",
    "requires_grad": "requires_grad changes: detach, or compile the two uses apart",
    "dispatch": "the kind of tensor changes (autocast, a subclass, another backend): keep to one",
    "device": "the device changes: move before the call",
    "mode": "a mode changes (grad, autocast, train or eval): one graph per mode is needed; compile the evaluation apart, or evaluate uncompiled",
    "value": "a float, bool, string or object is part of the graph: pass numbers as tensors, keep flags constant",
    "type": "another type of argument: keep to one",
    "length": "the length of a container changes: pass a tensor, or pad to one length",
    "object": "another object than the compiled one (a closure, a function, a module made anew): create it once and keep it",
    "parameter": "the same code runs with parameters of several shapes: one graph each "
    "(or torch._dynamo.config.force_parameter_static_shapes = False)",
    "branch": "the program, or the compiler for it, branches on a size: each side needs a graph of its own",
    "presence": "an argument is sometimes None: one graph each",
    "other": "not a cause that a dynamic source can cure; torch's words are in --json",
}
"""What to do about a recompilation that no dynamic source cures, by kind of cause."""


def recompiles_section(sheet: Sheet) -> list[str]:
    """The recompilations of a job and what to do about them."""
    shapes = shapes_of(sheet.job)
    lines = heading("RECOMPILATIONS", sheet.ink)
    if not shapes.first_count and not shapes.recompiles:
        return [*lines, *wrapped("Nothing was compiled by torch.compile in this job.", sheet.width)]
    compiled = f"{plural(shapes.first_count, 'function')} compiled in {duration(shapes.first_ns)}"
    if not shapes.recompiles:
        return [*lines, *wrapped(f"{compiled}, and never again.", sheet.width), *_applied(sheet, shapes)]
    again = sum(recompile.count for recompile in shapes.recompiles if not recompile.refused)
    spent = duration(sum(recompile.wall_ns for recompile in shapes.recompiles))
    lines += wrapped(f"{compiled}; {plural(again, 'compilation')} more took {spent} (forward and backward, slowest rank).", sheet.width)
    lines += ["", *_table(sheet, shapes), *_hints(sheet, shapes), *_clashes(sheet, shapes), *_applied(sheet, shapes), *_value(sheet, shapes)]
    return lines


def _table(sheet: Sheet, shapes: Shapes) -> list[str]:
    columns = [Column("function", 18), Column("where", 18), Column("times", 5, right=True), Column("took", 7, right=True)]
    columns.append(Column("cause", sheet.width - 2 - sum(column.width + 2 for column in columns)))
    lines = [head(columns, sheet.ink)]
    for recompile in shapes.recompiles[:SHOWN]:
        took = "-" if recompile.refused else duration(recompile.wall_ns)
        lines.append(row(columns, [clean(recompile.function), place(recompile.where), str(recompile.count), took, _cause(recompile)]))
    more = len(shapes.recompiles) - SHOWN
    return [*lines, sheet.ink.dim(f"  ... {more} more; all are in --json")] if more > 0 else lines


def place(where: str) -> str:
    """`model.py:48`."""
    return clean(PurePath(where).name)


def _cause(recompile: Recompile) -> str:
    cause = recompile.cause
    mark = "" if recompile.curable else "! "
    if recompile.places:
        first = ", ".join(clean(str(item)) for item in recompile.places[:PLACES_SHOWN])
        more = len(recompile.places) - PLACES_SHOWN
        was = recompile.was[0] if recompile.was else cause.expected
        same = recompile.places[0].dim == cause.dim and was == cause.expected
        now = cause.actual if same and cause.actual else "another"
        return f"{mark}{first}{f' and {more} more' if more > 0 else ''}  {was} -> {now}" if was else f"{mark}{first}"
    change = f"  {clean(cause.expected)} -> {clean(cause.actual) or 'another'}" if cause.expected else ""
    return f"{mark}{cause.kind.replace('_', ' ')} {clean(cause.name)}{change}"


def hint_of(recompile: Recompile) -> str:
    """What to do where no dynamic source helps; '' where one does."""
    if recompile.refused:
        return HINTS["limit"]
    if recompile.curable:
        return ""
    return HINTS["clash" if recompile.cause.kind in (SIZE, NUMBER) else recompile.cause.kind]


def _hints(sheet: Sheet, shapes: Shapes) -> list[str]:
    """Per kind of cause that a dynamic source does not cure."""
    hints: dict[str, list[str]] = {}
    for recompile in shapes.recompiles:
        hint = hint_of(recompile)
        if hint:
            named = clean(str(recompile.places[0]) if recompile.places else recompile.cause.name or recompile.function)
            hints.setdefault(hint, []).append(clip(named, 40))
    if not hints:
        return []
    lines = ["", "  ! No dynamic source cures these:"]
    for hint, names in hints.items():
        lines += wrapped(f"{', '.join(dict.fromkeys(names))}: {hint}.", sheet.width, first="    · ", rest="      ")
    return lines


def _clashes(sheet: Sheet, shapes: Shapes) -> list[str]:
    """Where names that vary stay the same, and the value for those who do not mind."""
    if not shapes.clashes:
        return []
    functions: dict[tuple[str, ...], list[str]] = {}
    for clash in shapes.clashes:
        functions.setdefault(tuple(_short(function) for function in clash.stays_in), []).append(clean(str(clash.place)))
    lines = ["", "  Left alone, since they were not seen to vary everywhere:"]
    for where, places in functions.items():
        lines += wrapped(f"{', '.join(places)}: the same in {', '.join(where)}", sheet.width, first="    · ", rest="      ")
    text = "If they may be dynamic there as well, take this value; else mark tensors in the program with torch._dynamo.mark_dynamic(tensor, dim):"
    return [*lines, *wrapped(text, sheet.width), f"    {VARIABLE}={shell_word(shapes.wider)}"]


def _short(function: str) -> str:
    name, _, where = function.partition(" (")
    return f"{clean(name)} ({place(where.rstrip(')'))})"


def _applied(sheet: Sheet, shapes: Shapes) -> list[str]:
    values = [f"  {VARIABLE}={shell_word(clean(value))}" for value in shapes.applied]
    return ["", *wrapped("Made dynamic from the start in this job:", sheet.width), *values] if values else []


def _value(sheet: Sheet, shapes: Shapes) -> list[str]:
    if not shapes.value:
        return []
    saved = sum(recompile.wall_ns for recompile in shapes.recompiles if recompile.curable)
    count = sum(recompile.count for recompile in shapes.recompiles if recompile.curable)
    if not count:
        return []
    command = clean(shlex.join(sheet.job.command))
    command = command if 0 < len(command) <= COMMAND_LIMIT else "<the same command>"
    text = f"Dynamic from the start, {plural(count, 'compilation')} ({duration(saved)}) would not have been needed. Either of:"
    return ["", *wrapped(text, sheet.width), f"    ett run --dynamic-sources auto -- {command}", f"    {VARIABLE}={shell_word(shapes.value)} {command}"]


def shell_word(text: str) -> str:
    """The text as one word of a shell's command line, in double quotes: names of sources are full of single ones."""
    if "!" in text:
        return shlex.quote(text)
    return '"' + re.sub(r'([$`"]|\\(?=[$`"\\]|$))', r"\\\1", text) + '"'


def recompiles_dict(shapes: Shapes) -> dict[str, object]:
    """The same for `ett report --recompiles --json`: every key stands in docs/report-json.md."""
    return {
        "functions": shapes.first_count,
        "first_s": seconds(shapes.first_ns),
        "dynamic_sources": shapes.value,
        "marked": [str(item) for item in shapes.marked],
        "clashes": [{"place": str(clash.place), "stays_in": list(clash.stays_in)} for clash in shapes.clashes],
        "dynamic_sources_wider": shapes.wider,
        "applied": list(shapes.applied),
        "recompilations": [_one(recompile) for recompile in shapes.recompiles],
    }


def _one(recompile: Recompile) -> dict[str, object]:
    cause = recompile.cause
    return {
        "function": recompile.function,
        "where": recompile.where,
        "count": recompile.count,
        "ranks": recompile.ranks,
        "attempts": list(recompile.attempts),
        "wall_s": seconds(recompile.wall_ns),
        "kind": cause.kind,
        "name": cause.name,
        "dim": cause.dim,
        "sources": [str(item) for item in recompile.places],
        "was": list(recompile.was),
        "expected": cause.expected,
        "actual": cause.actual,
        "reason": recompile.reason,
        "curable": recompile.curable,
        "refused": recompile.refused,
        "hint": hint_of(recompile),
    }

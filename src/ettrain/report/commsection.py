"""`ett report --comms`: the collectives of the start as tables. The numbers are put together in `comms`."""

from __future__ import annotations

import os
from typing import Final

from ettrain.account.history import Comm
from ettrain.report.bars import Column, Ink, head, heading, row, wrapped
from ettrain.report.comms import Calls, StartTraffic, start_traffic
from ettrain.report.sections import Sheet
from ettrain.report.units import clean, clip, duration, plural, size

SHOWN: Final = 16
GROUPS_SHOWN: Final = 8
RANKS_SHOWN: Final = 8
NUMBERS: Final = (
    Column("calls", 6, right=True),
    Column("on the wire", 11, right=True),
    Column("bytes", 8, right=True),
    Column("time", 8, right=True),
    Column("waiting", 8, right=True),
)


def comms_section(sheet: Sheet) -> list[str]:
    """What the ranks exchanged before they trained."""
    traffic = start_traffic(sheet.job)
    lines = heading("COLLECTIVES OF THE START", sheet.ink)
    if traffic is None:
        return [*lines, *wrapped("None were recorded: one process alone, a start that was killed, or an older recording.", sheet.width)]
    told = f"attempt {traffic.attempt}, {plural(traffic.ranks, 'rank')}; per rank, time on the slowest"
    lines[-1] += sheet.ink.dim(f"  {told}")
    lines += _operations(traffic, sheet)
    lines += _groups(traffic, sheet)
    lines += _avoidable(traffic, sheet)
    return [*lines, *_waits(traffic, sheet)]


def _operations(traffic: StartTraffic, sheet: Sheet) -> list[str]:
    columns = [Column("", max(22, min(40, sheet.width - 58))), *NUMBERS]
    lines = [head(columns, sheet.ink)]
    for calls in traffic.setup[:SHOWN]:
        mark = " *" if calls.rule is not None else ""
        asynchronous = " async" if calls.asyncs == calls.n else ""
        lines.append(row(columns, [clean(calls.op) + asynchronous + mark, *_numbers(calls)]))
        lines += [sheet.ink.dim(line) for line in wrapped(place_of(calls.place), sheet.width, first="    ", rest="      ")]
    rest = traffic.setup[SHOWN:]
    if rest:
        lines.append(row(columns, [f"{len(rest)} further kinds, see --json", *_sums(rest)]))
    lines.append(sheet.ink.bold(row(columns, ["in all", *_sums(traffic.setup)])))
    late = [calls for calls in traffic.calls if calls.place.late]
    if late:
        lines.append(row(columns, ["in the first iteration", *_sums(tuple(late))]))
    if any(calls.rule is not None for calls in traffic.setup):
        lines.append(sheet.ink.dim("  * avoidable, see below"))
    return lines


def _numbers(calls: Calls) -> list[str]:
    return _texts(calls.n, calls.wire, calls.bytes, calls.slowest_ns, calls.wait_ns)


def _sums(many: tuple[Calls, ...]) -> list[str]:
    waits = sum(calls.wait_ns for calls in many)
    n, wire, moved, ns = (sum(getattr(calls, name) for calls in many) for name in ("n", "wire", "bytes", "slowest_ns"))
    return _texts(n, wire, moved, ns, waits)


def _texts(n: int, wire: int, moved: int, ns: int, wait_ns: int) -> list[str]:
    return [f"{n:,}", f"{wire:,}" if wire else "-", size(moved) if moved else "-", duration(ns), duration(wait_ns)]


def place_of(place: Comm) -> str:
    """Where calls came from, from the program inwards: 'a/train.py:17 → DistributedDataParallel.__init__'."""
    if not place.site and not place.via:
        return "from many places"
    library = place.site if place.user else ""
    way = (_short(place.user or place.site), place.api, _short(library), place.via)
    return clean(" → ".join(name for name in way if name))


def _short(line: str) -> str:
    """`folder/file.py:17` of a path; of an installed package the path within it."""
    for packages in ("site-packages/", "dist-packages/"):
        _, found, inside = line.rpartition(packages)
        if found:
            return inside
    return os.path.join(*line.split(os.sep)[-2:]) if line else ""


def _groups(traffic: StartTraffic, sheet: Sheet) -> list[str]:
    if not traffic.groups:
        return []
    distinct = sum(not group.duplicate_of for group in traffic.groups)
    lines = [
        "",
        f"  {plural(len(traffic.groups), 'process group')}, {plural(distinct, 'distinct set')} of ranks"
        + sheet.ink.dim("  (of the rank in most)"),
    ]
    shown = traffic.groups if len(traffic.groups) <= GROUPS_SHOWN + 1 else traffic.groups[:GROUPS_SHOWN]
    for group in shown:
        told = group.group
        again = f"  the ranks of group {clean(group.duplicate_of)} again" if group.duplicate_of else ""
        desc = f" {clean(told.desc)}" if told.desc and told.desc != "undefined" else ""
        text = (
            f"    {clean(told.name)[:12]}{desc}: {plural(told.size, 'rank')} ({clip(clean(told.ranks), 24)}), {clean(told.backend)}{again}"
        )
        lines.append(_warn(sheet.ink, clip(text, sheet.width), warn=bool(again)))
    if len(shown) < len(traffic.groups):
        lines.append(sheet.ink.dim(f"    {len(traffic.groups) - len(shown)} more, see --json"))
    return lines


def _warn(ink: Ink, text: str, *, warn: bool) -> str:
    return ink.warn(text) if warn else ink.dim(text)


def _avoidable(traffic: StartTraffic, sheet: Sheet) -> list[str]:
    if not traffic.savings:
        return []
    lines = ["", "  Avoidable"]
    for saving in traffic.savings:
        moved = f", {size(saving.bytes)}" if saving.bytes else ""
        text = f"{saving.what}: {plural(saving.n, 'call')}{moved}, {duration(saving.ns)}. Left after: {saving.left}."
        lines += wrapped(text, sheet.width, first="  · ", rest="    ")
        lines += [sheet.ink.dim(line) for line in wrapped(saving.cure, sheet.width, first="    ", rest="    ")]
    return lines


def _waits(traffic: StartTraffic, sheet: Sheet) -> list[str]:
    """Who waited for whom: the rank that waits least is the one the others wait for."""
    if len(traffic.waits) < 2:
        return []
    columns = [Column("", 10), Column("in collectives", 14, right=True), Column("of it waiting", 14, right=True)]
    lines = ["", head(columns, sheet.ink)]
    ordered = sorted(traffic.waits, key=lambda wait: (-wait.wait_ns, wait.rank))
    half = RANKS_SHOWN // 2
    shown = ordered if len(ordered) <= RANKS_SHOWN else [*ordered[:half], *ordered[-half:]]
    for position, wait in enumerate(shown):
        if len(shown) < len(ordered) and position == half:
            lines.append(sheet.ink.dim(f"  ... {len(ordered) - len(shown)} more ranks"))
        lines.append(row(columns, [f"rank {wait.rank}", duration(wait.ns), duration(wait.wait_ns)]))
    lines.append(sheet.ink.dim(f"  rank {ordered[-1].rank} waits least: what it does meanwhile keeps the others"))
    return lines

"""`ett report --compiles`: what torch.compile compiled, attempt by attempt, what of it came out of caches, and why the rest did not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ettrain.account.history import AttemptHistory, CacheUse, Compile, JobHistory, RankHistory
from ettrain.report.bars import Column, head, heading, row, wrapped
from ettrain.report.recompiles import place
from ettrain.report.sections import Sheet
from ettrain.report.units import clean, duration, plural, seconds, size

SHOWN: Final = 30
NO_CACHE: Final = "no compile cache (ett run --compile-cache ADDRESS)"
NOT_STORED: Final = "not in the archive: new or changed"
BY_HAND: Final = "torch did not say"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """The compilations of one function in one attempt, on the rank that spent most on them."""

    attempt: int
    function: str
    where: str
    count: int
    wall_ns: int
    hits: int
    """Graphs that a cache held."""
    misses: int
    reason: str
    """Why graphs were missing; '' where none was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Uses:
    """What the compile cache did in one attempt."""

    attempt: int
    rank: int
    uses: tuple[CacheUse, ...]


def compiled_of(job: JobHistory) -> tuple[Compiled, ...]:
    """All functions compiled, in order of their first compilation, attempt by attempt."""
    found: list[Compiled] = []
    for number, attempt in enumerate(job.attempts):
        slowest: dict[tuple[str, str], Compiled] = {}
        for rank in attempt.ranks:
            why = _why_missing(rank)
            for (function, where), compiles in _by_function(rank).items():
                misses = sum(compile_.misses for compile_ in compiles)
                one = Compiled(
                    attempt=number,
                    function=function,
                    where=where,
                    count=len(compiles),
                    wall_ns=sum(compile_.end - compile_.start for compile_ in compiles),
                    hits=sum(compile_.hits for compile_ in compiles),
                    misses=misses,
                    reason=why if misses else "",
                )
                before = slowest.get((function, where))
                if before is None or one.wall_ns > before.wall_ns:
                    slowest[function, where] = one
        found += slowest.values()
    return tuple(found)


def uses_of(job: JobHistory) -> tuple[Uses, ...]:
    """What the compile cache did, for the lowest rank of each attempt that used one."""
    found = []
    for number, attempt in enumerate(job.attempts):
        rank = _lowest_user(attempt)
        if rank is not None:
            found.append(Uses(attempt=number, rank=rank.rank, uses=tuple(rank.cache_uses)))
    return tuple(found)


def _lowest_user(attempt: AttemptHistory) -> RankHistory | None:
    return min((rank for rank in attempt.ranks if rank.cache_uses), key=lambda rank: rank.rank, default=None)


def _by_function(rank: RankHistory) -> dict[tuple[str, str], list[Compile]]:
    """Compilations that took place, by function; a lazy backward belongs to its forward's function."""
    named: dict[str, tuple[str, str]] = {}
    found: dict[tuple[str, str], list[Compile]] = {}
    for compile_ in rank.compiles:
        if compile_.refused:
            continue
        if compile_.where:
            named[compile_.id] = (compile_.function, compile_.where)
        key = named.get(compile_.id, (compile_.function, compile_.where))
        found.setdefault(key, []).append(compile_)
    return found


def _why_missing(rank: RankHistory) -> str:
    fetches = [use for use in rank.cache_uses if use.act == "fetch"]
    if not fetches:
        return NO_CACHE
    return fetches[-1].reason or (NOT_STORED if fetches[-1].entries else BY_HAND)


def compiles_section(sheet: Sheet) -> list[str]:
    """The section of the text report."""
    rows = compiled_of(sheet.job)
    lines = heading("COMPILATIONS", sheet.ink)
    if not rows:
        return [*lines, *wrapped("Nothing was compiled by torch.compile in this job.", sheet.width)]
    columns = [
        Column("attempt", 7, right=True), Column("function", 20), Column("where", 22), Column("times", 5, right=True),
        Column("took", 8, right=True), Column("from cache", 10, right=True),
    ]  # fmt: skip
    lines.append(head(columns, sheet.ink))
    for one in rows[:SHOWN]:
        graphs = one.hits + one.misses
        cached = f"{one.hits} of {graphs}" if graphs else "-"
        cells = [f"#{one.attempt}", clean(one.function) or "?", place(one.where), str(one.count), duration(one.wall_ns), cached]
        lines.append(row(columns, cells))
    if len(rows) > SHOWN:
        lines.append(sheet.ink.dim(f"  ... {len(rows) - SHOWN} more; all are in --json"))
    for number in dict.fromkeys(one.attempt for one in rows if one.misses):
        reason = next(one.reason for one in rows if one.attempt == number and one.misses)
        lines += wrapped(f"#{number} had to compile: {clean(reason)}.", sheet.width, first="  · ", rest="    ")
    for told in uses_of(sheet.job):
        lines += wrapped(
            f"#{told.attempt} {', '.join(map(_use_in_words, told.uses))} (rank {told.rank}).", sheet.width, first="  · ", rest="    "
        )
    return lines


def _use_in_words(use: CacheUse) -> str:
    if not use.entries:
        return f"{use.act} of the compile cache: nothing ({clean(use.reason)})"
    verb = "fetched" if use.act == "fetch" else "published"
    problem = f", but {clean(use.reason)}" if use.reason else ""
    return (
        f"{verb} {plural(use.entries, 'artifact')} ({size(use.size)}) in {duration(use.end - use.start)}{problem}"
    )


def compiles_dict(job: JobHistory) -> dict[str, object]:
    """The same as JSON: every key stands in docs/report-json.md."""
    return {
        "functions": [
            {
                "attempt": one.attempt, "function": one.function, "where": one.where, "compiles": one.count, "wall_s": seconds(one.wall_ns),
                "graphs_from_cache": one.hits, "graphs_compiled": one.misses, "reason": one.reason or None,
            }
            for one in compiled_of(job)
        ],
        "cache": [
            {"attempt": told.attempt, "rank": told.rank, "act": use.act, "entries": use.entries, "bytes": use.size,
             "wall_s": seconds(use.end - use.start), "reason": use.reason or None}
            for told in uses_of(job) for use in told.uses
        ],
    }  # fmt: skip

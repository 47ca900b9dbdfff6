"""Runs of `ett.Startup` in the report: the critical path of a start, each stage's slack, and what the overlap saved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ettrain.account.history import JobHistory
from ettrain.account.startruns import CriticalPath, critical_path
from ettrain.report.bars import Column, Ink, head, heading, row, wrapped
from ettrain.report.units import clean, duration, pad, seconds

Json = dict[str, object]

NAME_WIDTH: Final = 28
BAR: Final = "█"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRun:
    """The run of one attempt that is shown: of the rank that was ready last."""

    attempt: int
    rank: int
    ranks: int
    """Ranks that ran it."""
    path: CriticalPath


def shown_runs(job: JobHistory) -> list[ShownRun]:
    """Per attempt and run (the first, the second, ... of a process): the one that ended last."""
    shown: list[ShownRun] = []
    for number, attempt in enumerate(job.attempts):
        for place in range(max((len(rank.start_runs) for rank in attempt.ranks), default=0)):
            having = [rank for rank in attempt.ranks if len(rank.start_runs) > place]
            slowest = max(having, key=lambda rank: (rank.start_runs[place].end, -rank.rank))
            path = critical_path(slowest.start_runs[place])
            shown.append(ShownRun(attempt=number, rank=slowest.rank, ranks=len(having), path=path))
    return shown


def startgraph_dict(job: JobHistory) -> list[Json]:
    """The runs as JSON's own types."""
    return [_run_dict(shown) for shown in shown_runs(job)]


def _run_dict(shown: ShownRun) -> Json:
    path, run = shown.path, shown.path.run
    return {
        "attempt": shown.attempt,
        "rank": shown.rank,
        "ranks": shown.ranks,
        "sequential": run.sequential,
        "failed": run.failed or run.error or None,
        "wall_s": seconds(path.took_ns),
        "critical_path_s": seconds(path.path_ns),
        "sum_s": seconds(path.sum_ns),
        "saved_s": seconds(path.sum_ns - path.took_ns),
        "critical_path": [item.stage.name for item in path.rows if item.critical],
        "stages": [
            {
                "name": item.stage.name,
                "lane": item.stage.lane,
                "needs": [run.stages[place].name for place in item.stage.needs if place < len(run.stages)],
                "begin_s": seconds(item.stage.start - run.start),
                "took_s": seconds(item.took_ns),
                "cpu_s": seconds(item.stage.cpu_ns),
                "slack_s": None if run.error else seconds(item.slack_ns),
                "critical": item.critical,
            }
            for item in path.rows
        ],
    }


def startgraph_section(job: JobHistory, width: int, ink: Ink) -> list[str]:
    """The first attempt's runs, and the newest one's where that is another."""
    runs = shown_runs(job)
    if not runs:
        return []
    wanted = {runs[0].attempt, runs[-1].attempt}
    return [line for shown in runs if shown.attempt in wanted for line in _run_lines(shown, width, ink)]


def _run_lines(shown: ShownRun, width: int, ink: Ink) -> list[str]:
    path, run = shown.path, shown.path.run
    title = f"THE STAGES OF THE START (ATTEMPT {shown.attempt}"
    lines = heading(f"{title}, RANK {shown.rank})" if shown.ranks > 1 else f"{title})", ink)
    columns = [Column("", NAME_WIDTH), Column("on", 10), *(Column(name, 8, right=True) for name in ("begin", "took", "cpu", "slack"))]
    lines.append(head(columns, ink))
    left = NAME_WIDTH + 10 + 4 * 8 + 5 * 2 + 4
    room = max(0, width - left)
    for item in path.rows:
        stage = item.stage
        values = [("* " if item.critical else "  ") + clean(stage.name), stage.lane, duration(stage.start - run.start)]
        values += [duration(item.took_ns), duration(stage.cpu_ns), "" if item.critical or run.error else duration(item.slack_ns)]
        before = room * (stage.start - run.start) // max(1, path.took_ns)
        count = max(1, room * item.took_ns // max(1, path.took_ns)) if room else 0
        bar = " " * before + BAR * min(count, room - before)
        text = pad(row(columns, values), left)
        lines.append((text + (bar if item.critical else ink.dim(bar))).rstrip())
    return lines + wrapped(_summary(shown), width)


def _summary(shown: ShownRun) -> str:
    path, run = shown.path, shown.path.run
    if run.error:
        where = f" in stage '{clean(run.failed)}'" if run.failed else ""
        return f"It ended by {clean(run.error)}{where} after {duration(path.took_ns)}."
    if run.sequential:
        could = f"The critical path (*) takes {duration(path.path_ns)}: with overlap it could be as short as that."
        return f"In all {duration(path.took_ns)}, without overlap, as asked. {could}"
    whole = f"In all {duration(path.took_ns)}. The critical path (*) takes {duration(path.path_ns)}: no overlap can make it shorter."
    saved = path.sum_ns - path.took_ns
    return f"{whole} One after another the stages take {duration(path.sum_ns)}: overlapping saved {duration(max(0, saved))}."

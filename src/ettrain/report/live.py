"""`ett watch`: a running job at one instant, as a small screen, as a line, as a dict. The loop around it is in `cli.watch`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ettrain.account.history import JobHistory, RankHistory
from ettrain.account.ledger import Account
from ettrain.account.timeline import Tiles
from ettrain.lifecycle import DETECT, EFFECTIVE
from ettrain.report.atrisk import at_risk, at_risk_dict, at_risk_words
from ettrain.report.bars import Column, Ink, row, stacked
from ettrain.report.figures import can
from ettrain.report.metrics import NOT_CARRIED, group_sums, short
from ettrain.report.palette import BY_KEY, group_of
from ettrain.report.units import clean, clip, day_and_time, duration, instant, pad, percent, plural, seconds

SCHEMA: Final = 1
_COLUMNS: Final = (Column("", 9), Column("", 30), Column("", 9, right=True), Column("", 26))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankNow:
    """What one rank does at the instant of the look."""

    rank: int
    path: str
    """Leaf it is in, without `idle/`; 'effective' while it trains."""
    stage_ns: int
    """For how long."""
    step: int | None
    """Global steps done; None before the first."""
    silence_ns: int | None
    """Since its last step or stage ended; None where there was none."""
    alive: bool
    code: int | None


def ranks_now(account: Account, job: JobHistory) -> list[RankNow]:
    """The ranks of the last attempt, by number."""
    if not account.frames:
        return []
    told = {rank.rank: rank for rank in job.attempts[-1].ranks}
    return [_rank_now(tiles, told.get(tiles.rank), account) for tiles in sorted(account.tiles[-1], key=lambda tiles: tiles.rank)]


def _rank_now(tiles: Tiles, rank: RankHistory | None, account: Account) -> RankNow:
    end = account.frames[-1].end
    leaf = account.leaves.pairs[tiles.codes[-1]][0] if tiles.codes else EFFECTIVE
    begin = tiles.starts[-1] if tiles.starts else end
    if rank is None:
        return RankNow(rank=tiles.rank, path=leaf, stage_ns=end - begin, step=None, silence_ns=None, alive=True, code=None)
    ended = [span.end for span in rank.spans if span.end < rank.end]
    latest = max([rank.last_step_t or 0, *ended])
    return RankNow(
        rank=rank.rank,
        path=leaf,
        stage_ns=end - begin,
        step=account.lineage.maps[-1].at(rank.steps) if rank.steps else None,
        silence_ns=end - latest if latest else None,
        alive=rank.alive,
        code=rank.code,
    )


def live_dict(account: Account, job: JobHistory) -> dict[str, object]:
    """One look as JSON's own types; `ett watch --json` prints one a line."""
    ledger = account.ledger
    return {
        "schema": SCHEMA,
        "job": ledger.job,
        "status": ledger.status,
        "at": instant(job.now),
        "ett_pct": ledger.ett_pct if can(job, "ett") else None,
        "wall_s": seconds(ledger.wall_ns),
        "effective_s": seconds(ledger.effective_ns),
        "at_risk_s": seconds(ledger.at_risk_ns),
        "at_risk": at_risk_dict(at_risk(account, job)),
        "steps": ledger.steps,
        "attempts": len(ledger.attempts),
        "interruptions": len(ledger.incidents),
        "ranks": [
            {
                "rank": now.rank,
                "stage": short(now.path),
                "stage_s": seconds(now.stage_ns),
                "step": now.step,
                "silence_s": None if now.silence_ns is None else seconds(now.silence_ns),
                "alive": now.alive,
            }
            for now in ranks_now(account, job)
        ],
    }


def render_live(account: Account, job: JobHistory, *, width: int, height: int, colour: bool) -> str:
    """The screen: at most `height` lines of at most `width` columns."""
    ledger, ink = account.ledger, Ink(colour)
    facts = f"{ledger.status} · attempt #{max(0, len(ledger.attempts) - 1)} · {duration(ledger.wall_ns)} · {day_and_time(job.now)}"
    lines = [ink.bold(clip(clean(ledger.job), width)), ink.dim(clip(facts, width)), ""]
    if not account.frames:
        return "\n".join([*lines[: height - 1], "  waiting for the first attempt"]) + "\n"
    number = _ett(account, job)
    bar = stacked(group_sums(ledger), width - len(number) - 6, ink)
    risk = at_risk(account, job)
    told = [" · ".join(_state(account)), *([" · ".join(at_risk_words(risk))] if risk is not None else [])]
    lines += [f"  {ink.bold(ink.group(BY_KEY['effective'], number))}  {bar}", *(f"  {clip(text, width - 2)}" for text in told), ""]
    ranks = ranks_now(account, job)
    room = max(1, height - len(lines) - 2)
    shown = ranks
    if len(ranks) > room:
        behind = sorted(ranks, key=lambda now: (now.step or 0, -(now.silence_ns or 0), now.rank))[:room]
        shown = sorted(behind, key=lambda now: now.rank)
    lines += [_rank_line(now, width, ink) for now in shown]
    if len(shown) < len(ranks):
        lines.append(ink.dim(clip(f"  ... {plural(len(ranks) - len(shown), 'rank')} further ahead", width)))
    return "\n".join(lines[:height]) + "\n"


def live_line(account: Account, job: JobHistory) -> str:
    """One look on one line, for logs."""
    ledger = account.ledger
    if not account.frames:
        return f"{day_and_time(job.now)}  {clean(ledger.job)}: waiting for the first attempt"
    stages: dict[str, int] = {}
    for now in ranks_now(account, job):
        word = _doing(now)
        stages[word] = stages.get(word, 0) + 1
    doing = ", ".join(f"{count} {word}" for word, count in sorted(stages.items(), key=lambda item: -item[1]))
    risk = at_risk(account, job)
    state = " · ".join([*_state(account), *(at_risk_words(risk) if risk is not None else [])])
    return f"{day_and_time(job.now)}  {_ett(account, job)}  {state}  ranks: {doing}"


def _ett(account: Account, job: JobHistory) -> str:
    ledger = account.ledger
    share = percent(ledger.effective_ns, ledger.wall_ns) if can(job, "ett") else NOT_CARRIED
    return f"ETT so far {share}" if ledger.status == "running" else f"ETT {share}"


def _state(account: Account) -> list[str]:
    ledger = account.ledger
    words = [f"step {ledger.steps:,}" if ledger.trained else "no step yet", plural(len(ledger.attempts), "attempt")]
    if ledger.incidents:
        last = ledger.incidents[-1].diagnosis.cls
        words.append(f"{plural(len(ledger.incidents), 'interruption')} (last: {clean(last)})")
    return words


def _doing(now: RankNow) -> str:
    if not now.alive and now.code is not None:
        return f"ended with code {now.code}"
    if now.path == EFFECTIVE:
        return "training"
    return "silent" if now.path == DETECT else short(now.path)


def _rank_line(now: RankNow, width: int, ink: Ink) -> str:
    doing = _doing(now)
    if now.path == EFFECTIVE and now.step is not None:
        doing = f"training, step {now.step:,}"
    lasting = "" if now.path == EFFECTIVE or not now.alive else duration(now.stage_ns)
    progress = "no progress yet" if now.silence_ns is None else f"progress {duration(now.silence_ns)} ago"
    group = group_of(now.path if "/" not in now.path or now.path.startswith("failure/") else f"idle/{now.path}")
    text = row(_COLUMNS, [f"rank {now.rank}", doing, lasting, progress], indent="")
    return f"  {ink.group(group, group.glyph)} {pad(text, width - 4).rstrip()}"

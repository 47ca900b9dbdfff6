"""What the next failure would take from a running job, and when that ends: since which checkpoint, how long, how many steps."""

from __future__ import annotations

from dataclasses import dataclass

from ettrain.account.history import JobHistory, SaveInterval
from ettrain.account.incidents import steps_of
from ettrain.account.ledger import Account
from ettrain.report.units import duration, instant, plural, seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class AtRisk:
    """What is at risk now."""

    ns: int
    """Training since the last durable checkpoint."""
    steps: int | None
    """Steps since then; None where the program has gone back below it by itself, so that they cannot be counted."""
    saved: bool
    """Whether there is a checkpoint at all."""
    since_step: int
    """Global step that the checkpoint holds; where there is none, the one that the job began with."""
    since: int
    """Instant that it holds."""
    next_ns: int | None
    """Until the next save is due; None where that is not known, or not a matter of time."""
    next_step: int | None
    """Steps done when it is due; None where that is not known, or a matter of time."""
    why: str
    """How often is saved, in words; '' where nobody said."""


def at_risk(account: Account, job: JobHistory) -> AtRisk | None:
    """What is at risk in a job that runs and has trained; None in any other."""
    ledger, line = account.ledger, account.lineage
    if ledger.status != "running" or not ledger.trained or not account.frames[-1].running:
        return None
    attempt = job.attempts[-1]
    step = line.maps[-1].at(steps_of(attempt))
    told = max((rank.save_interval for rank in attempt.ranks if rank.save_interval is not None), default=None, key=lambda one: one.t)
    begun = max((save.snapshot for rank in attempt.ranks for save in rank.saves), default=0)
    next_ns, next_step = (None, None) if told is None else _next(told, begun, step, job.now)
    return AtRisk(
        ns=ledger.at_risk_ns,
        steps=step - line.durable_step if step >= line.durable_step else None,
        saved=any(save.durable is not None for one in job.attempts for rank in one.ranks for save in rank.saves),
        since_step=line.durable_step,
        since=line.last_durable,
        next_ns=next_ns,
        next_step=next_step,
        why="" if told is None else told.why,
    )


def _next(told: SaveInterval, begun: int, step: int, now: int) -> tuple[int | None, int | None]:
    if told.interval_ns is not None:
        return max(0, max(told.t, begun) + told.interval_ns - now), None
    return None, None if told.steps is None else (step // told.steps + 1) * told.steps


def at_risk_words(risk: AtRisk) -> list[str]:
    """The same for one line: 'at risk 42.1 s, 120 steps since step 1,100', 'next save in 18 s'."""
    words = f"at risk {duration(risk.ns)}"
    if not risk.saved:
        return [f"{words} (no checkpoint saved yet)", *_next_words(risk)]
    steps = "" if risk.steps is None else f", {plural(risk.steps, 'step')}"
    return [f"{words}{steps} since step {risk.since_step:,}", *_next_words(risk)]


def _next_words(risk: AtRisk) -> list[str]:
    if risk.next_ns is not None:
        return [f"next save in {duration(risk.next_ns // 10**9 * 10**9)}" if risk.next_ns >= 10**9 else "next save now"]
    return [f"next save at step {risk.next_step:,}"] if risk.next_step is not None else []


def at_risk_dict(risk: AtRisk | None) -> dict[str, object] | None:
    """The same as JSON's own types."""
    if risk is None:
        return None
    return {
        "s": seconds(risk.ns), "steps": risk.steps, "saved": risk.saved, "since_step": risk.since_step, "since": instant(risk.since),
        "next_save_s": None if risk.next_ns is None else seconds(risk.next_ns), "next_save_step": risk.next_step, "why": risk.why or None,
    }  # fmt: skip

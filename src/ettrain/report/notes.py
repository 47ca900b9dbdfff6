"""What a reader must know to trust the numbers, in sentences, and the next command to type. Decides no figure.

Warnings come first: each names what is wrong, what it does to the numbers, and what to do about it where something can be done.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ettrain.account.history import JobHistory
from ettrain.account.ledger import Account, Ledger
from ettrain.lifecycle import EFFECTIVE, UNTRACKED
from ettrain.report.figures import FIGURES, can, missing
from ettrain.report.palette import group_of
from ettrain.report.publishes import publish_warnings
from ettrain.report.units import clean, clip, duration, percent, plural

UNTRACKED_LIMIT_FRAC: Final = 0.02
CLOCK_LIMIT_NS: Final = 10_000_000
COMMAND_LIMIT: Final = 300
_UNREADABLE: Final = ".jsonl: "
"""What the reader's notes on a journal that it could not read contain: its path and a colon."""
_START_GROUPS: Final = ("start", "restart")


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One sentence for the reader."""

    level: str
    """'warning' where a number cannot be taken at face value or work is in danger, else 'info'."""
    text: str


def notes_of(account: Account, job: JobHistory) -> tuple[Note, ...]:
    """All notes of a job, warnings first."""
    warnings = [Note(level="warning", text=text) for text in _warnings(account, job)]
    infos = [Note(level="info", text=text) for text in _infos(account, job)]
    return (*warnings, *infos)


def faults_of(job: JobHistory) -> tuple[int, list[str]]:
    """(number of recorder faults, their texts)."""
    ranks = [rank for attempt in job.attempts for rank in attempt.ranks]
    texts = list(dict.fromkeys(clean(text) for rank in ranks for text in rank.fault_texts))
    return sum(rank.faults for rank in ranks), texts


def unmeasured_of(job: JobHistory) -> list[tuple[int, int, int]]:
    """(attempt, ranks without a journal, ranks expected) where there are any."""
    counts = ((number, attempt.world - len({r.rank for r in attempt.ranks}), attempt.world) for number, attempt in enumerate(job.attempts))
    return [count for count in counts if count[1] > 0]


def untracked_ns(ledger: Ledger) -> int:
    """Wall time that nothing recorded covers."""
    return sum(leaf.wall_ns for leaf in ledger.leaves if leaf.path == UNTRACKED)


def _warnings(account: Account, job: JobHistory) -> Iterator[str]:
    ledger = account.ledger
    yield from (clean(text) for text in job.notes if _UNREADABLE in text)
    yield from _protection(ledger, job)
    yield from _progress(account, job)
    untracked = untracked_ns(ledger)
    if can(job, "ett") and untracked > UNTRACKED_LIMIT_FRAC * ledger.wall_ns:
        share = percent(untracked, ledger.wall_ns)
        yield f"{share} of the wall time is untracked: the recording does not say what it was. Mark it with ett.stage(...) to see it."
    yield from publish_warnings(job)
    count, texts = faults_of(job)
    if count:
        first = f" First: {clip(texts[0], 200)}." if texts else ""
        yield f"The recorder failed {plural(count, 'time')} inside the training processes; training went on, stages may be missing.{first}"
    for number, absent, world in unmeasured_of(job)[:4]:
        counted = "counted as launch" if account.frames[number].first_step_t is None else "not in the numbers"
        yield f"Attempt {number}: {absent} of {plural(world, 'rank')} left no journal and {'is' if absent == 1 else 'are'} {counted}."
    lost = [str(number) for number, attempt in enumerate(job.attempts) if attempt.lost]
    if lost:
        yield f"{_attempts(lost)} lost the supervisor: the end is the last sign of life, the true one may be later."


def _attempts(numbers: list[str]) -> str:
    more = f" and {len(numbers) - 6} more" if len(numbers) > 6 else ""
    return f"Attempt {numbers[0]}" if len(numbers) == 1 else f"Attempts {', '.join(numbers[:6])}{more}"


def _protection(ledger: Ledger, job: JobHistory) -> Iterator[str]:
    """Whether anything protects the job's work."""
    if not ledger.trained or not can(job, "unsaved"):
        return
    saves = [save for attempt in job.attempts for rank in attempt.ranks for save in rank.saves]
    if not ledger.saves:
        outcome = f"An interruption now loses {duration(ledger.effective_ns)} of training."
        if ledger.status != "running":
            outcome = "An interruption loses all that was trained until then."
        yield f"Nothing protects this job's work: no checkpoint was seen being saved. {outcome}"
    elif all(save.durable is None for save in saves):
        yield f"Nothing protects this job's work: of {plural(ledger.saves, 'save')} none became durable (failed, or never committed)."
    fresh = [str(row.number) for row in ledger.attempts if row.resume.source == "fresh"]
    if fresh:
        yield (
            f"{_attempts(fresh)} began afresh: no checkpoint of this job was seen being loaded there, "
            "so all that was trained before counts as unsaved. If it did resume, say so with ett.steps(loader, start=...)."
        )


def _progress(account: Account, job: JobHistory) -> Iterator[str]:
    """Whether the job gets anywhere."""
    if not account.frames:
        yield "No attempt of this job has been recorded yet."
        return
    last = account.frames[-1]
    if last.running and last.hung:
        yield f"No rank has made progress for {duration(last.end - last.stopped)}, longer than any step takes: it may be hanging."
    if not account.ledger.trained and can(job, "ett"):
        yield "No training step was seen: nothing of this job's time counts as effective. If it does train, count with ett.steps(loader)."


def _infos(account: Account, job: JobHistory) -> Iterator[str]:
    ledger = account.ledger
    for row in ledger.attempts:
        if row.resume.source == "said" and row.number:
            exact = f"± {duration(row.resume.error_ns)}" if row.resume.error_ns else "exactly"
            yield f"Attempt {row.number} resumed at step {row.resume.step} by the program's own word; the instant of that step is known {exact}."
    if job.torn_lines:
        yield f"{plural(job.torn_lines, 'journal line')} could not be read (torn by a crash) and {'was' if job.torn_lines == 1 else 'were'} left out."
    if job.clock_correction_ns > CLOCK_LIMIT_NS:
        yield f"The hosts' clocks disagreed: corrected by up to {duration(job.clock_correction_ns)}, from steps that all ranks end together."
    if ledger.step_sources:
        yield f"Steps were counted by: {', '.join(map(clean, ledger.step_sources))}."
    absent = missing(job)
    if absent:
        yield f"Not in this source: {', '.join(FIGURES[name] for name in absent)}."
    yield from (clean(text) for text in job.notes if _UNREADABLE not in text)


def report_command(job: str, runs: str = "") -> str:
    """The command that reports on a job."""
    return f"ett report {shlex.quote(clean(job))}{_where(runs)}"


def _where(runs: str) -> str:
    return f" --runs {shlex.quote(clean(runs))}" if runs else ""


def next_command(account: Account, job: JobHistory, *, explained: bool = False, recompiles: bool = False, runs: str = "") -> tuple[str, str]:
    """(command to type next, why).

    Args:
        explained: the start-up table is on the page already.
        recompiles: so are the recompilations.
        runs: what `--runs` must be given, '' where the default will do.
    """
    ledger = account.ledger
    where = _where(runs)
    name = shlex.quote(clean(ledger.job))
    if ledger.status == "running":
        return f"ett watch {name}{where}", "follow it while it runs"
    if ledger.status in ("failed", "stopped"):
        command = clean(shlex.join(job.command))
        command = command if 0 < len(command) <= COMMAND_LIMIT else "<the same command>"
        return f"ett run --job {name}{where} -- {command}", "resume it; the report goes on where it ended"
    worst = max((leaf for leaf in ledger.leaves if leaf.path != EFFECTIVE), key=lambda leaf: leaf.wall_ns, default=None)
    if worst is not None and worst.path.endswith("/recompile") and not recompiles:
        return f"{report_command(ledger.job, runs)} --recompiles", "recompilation is the largest loss: see what varies, and what spares it"
    if worst is not None and group_of(worst.path).key in _START_GROUPS and not explained and can(job, "tts"):
        return f"{report_command(ledger.job, runs)} --explain-startup", "the start is the largest loss: see what it consists of"
    return f"{report_command(ledger.job, runs)} --html {name}.html", "the same with a timeline of every rank"

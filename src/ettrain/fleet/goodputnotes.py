"""What goodput records leave open, in words: what was inferred, by how much it may be off, and what ETT% would be otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from ettrain.account.ledger import Ledger
from ettrain.fleet.goodputjournal import Journal
from ettrain.fleet.goodputlog import GoodputLog
from ettrain.fleet.goodputruns import Step
from ettrain.lifecycle import UNTRACKED

_LONG_FRAC = 1.5
"""A step that takes so many times the usual is worth a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """What was left out before the records were read."""

    repeats: int
    writers: list[int]
    """How far behind the first writer each other one was, ns."""
    later: int
    """Records from after the instant at which to look."""


def notes_of(log: GoodputLog, cleaned: Cleaned, journals: list[Journal], ledger: Ledger) -> list[str]:
    """All notes, the most important first."""
    return [
        *_writers(log, cleaned),
        *_tail(journals, ledger),
        *_long_steps(journals, ledger),
        *_stalls(journals, ledger),
        *_roll_backs(journals),
        *_ends(journals),
        *_lost_steps(journals),
        *_estimates(journals),
    ]


def _pct(part: int, ledger: Ledger) -> str:
    return f"{100 * part / ledger.wall_ns:.2f}%" if ledger.wall_ns else "0%"


def _s(ns: int) -> str:
    return f"{ns / 1e9:.3f}".rstrip("0").rstrip(".") + " s"


def _writers(log: GoodputLog, cleaned: Cleaned) -> Iterator[str]:
    if cleaned.writers:
        many = "Two processes" if len(cleaned.writers) == 1 else f"{len(cleaned.writers) + 1} processes"
        apart = _s(cleaned.writers[0])
        yield f"{many} recorded this job: each step is there again, {apart} later. Only the first one's records are read. Let rank 0 alone record."
    if cleaned.repeats:
        yield f"{cleaned.repeats} records were there twice, to the instant: they count once."
    if cleaned.later:
        yield f"{cleaned.later} records from after the instant given with --now are left out."
    if log.torn:
        yield "The last line is cut off: it is left out."


def _tail(journals: list[Journal], ledger: Ledger) -> Iterator[str]:
    last = journals[-1].run
    if last.ended == "inferred":
        yield (
            "job_end_time is missing. The last record is that of something after the last step, and nothing followed: the job is taken to have "
            "ended there. If it held its hardware for longer, ETT% is lower."
        )
    elif last.ended == "now":
        yield f"No job_end_time: the job is taken to be still going at {_s(last.end - ledger.start)} after its start, where the reading ends."
    tail = sum(end - start for start, end, path in ledger.slices if path == UNTRACKED)
    if tail and last.steps and last.ended != "now":
        yield (
            f"What the job did for {_s(tail)} after its last step is not in the records (a save, an export, the teardown?): untracked, not training. "
            f"If it was training, ETT% is {_pct(ledger.effective_ns + tail, ledger)}."
        )


def _long_steps(journals: list[Journal], ledger: Ledger) -> Iterator[str]:
    """Steps that are longer than usual and yet no stall: training, as far as anybody knows."""
    found: list[tuple[Step, int]] = []
    for journal in journals:
        stalled = {step.start for step in journal.stalls}
        for step in journal.run.steps[1:]:
            excess = step.net - journal.usual * step.covers
            if journal.usual and step.done and step.net > _LONG_FRAC * journal.usual * step.covers and step.start not in stalled:
                found.append((step, excess))
    kept = [(step, excess) for step, excess in found if any(s <= step.start < e for s, e, path in ledger.slices if path == "effective")]
    if not kept:
        return
    total = sum(excess for _, excess in kept)
    numbers = [step.number for step, _ in kept]
    each = {b - a for a, b in pairwise(numbers)}
    span = f"{_s(min(x for _, x in kept))}" if len({x for _, x in kept}) == 1 else f"{_s(min(x for _, x in kept))} to {_s(max(x for _, x in kept))}"
    shown = ", ".join(map(str, numbers[:6])) + (", ..." if len(numbers) > 6 else "")
    bounds = f"ETT% is at most {_pct(ledger.effective_ns, ledger)}, and at least {_pct(ledger.effective_ns - total, ledger)} if none of the excess was training."
    if len(kept) > 2 and len(each) == 1:
        period = each.pop()
        yield (
            f"Every {period} steps (after steps {shown}) a step takes {span} longer than usual: a save or an evaluation that nobody recorded? "
            f"Counted as training. {bounds}"
        )
    else:
        yield f"{len(kept)} steps (steps {shown}) take {span} longer than usual: slow training, or something that nobody recorded? Counted as training. {bounds}"


def _stalls(journals: list[Journal], ledger: Ledger) -> Iterator[str]:
    for journal in journals:
        for step in journal.stalls[:4]:
            excess = step.net - journal.usual * step.covers
            yield (
                f"Step {step.number} took {_s(step.net)} where {_s(journal.usual)} is usual: the excess counts as a stall, as nobody recorded what it was. "
                f"If it was training, ETT% is {_pct(ledger.effective_ns + excess, ledger)}."
            )


def _roll_backs(journals: list[Journal]) -> Iterator[str]:
    steps = [step for journal in journals for step in journal.rolled_back]
    if steps:
        yield (
            f"Step {steps[0]} came again without a new start ({len(steps)} such return(s) in all): a roll-back inside the process, unsaved but no failure. "
            "If the program numbers its steps anew in each epoch, record the global step instead."
        )


def _ends(journals: list[Journal]) -> Iterator[str]:
    for number, (journal, following) in enumerate(pairwise(journals)):
        run, gap = journal.run, following.run.start - journal.run.seen
        if run.ended != "estimated":
            continue
        text = f"Attempt {number}: when it died is not in the records, only that nothing came for {_s(gap)} before the next start. "
        text += f"Its end is taken to be {_s(run.end - run.seen)} after its last record"
        text += f" (± {_s(run.error_ns)}); " if run.error_ns else "; "
        text += "unsaved work and the wait for the next attempt may shift by that much, ETT% does not."
        if journal.usual and gap > 10 * journal.usual:
            text += " How much of the rest was a hang, and how much waiting for hardware, is not known: all of it counts as reschedule."
        yield text


def _lost_steps(journals: list[Journal]) -> Iterator[str]:
    lost = [(step, journal) for journal in journals for step in journal.run.steps if step.covers > 1]
    if lost:
        count = sum(step.covers - 1 for step, _ in lost)
        first = lost[0][0]
        yield f"The records of {count} step(s) are missing, the first after step {first.number}: the time is counted as those steps, not as a failure."


def _estimates(journals: list[Journal]) -> Iterator[str]:
    usual = [journal.usual for journal in journals if journal.usual]
    if any(journal.compile_ns for journal in journals):
        yield f"Compilation is not recorded: it is what each attempt's first step takes longer than a usual one ({_s(usual[-1])}, the median)."
    elif not usual and any(journal.run.steps for journal in journals):
        yield "Too few steps to tell what one takes: compilation in the first step counts as training."

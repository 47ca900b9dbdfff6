"""One run of goodput records as the journal that the recorder would have written for it."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from ettrain.events import Record
from ettrain.fleet import importing
from ettrain.fleet.goodputruns import LOAD, STALL_FACTOR, Known, Run, Step, uncovered

_SECOND: Final = 1_000_000_000
_SHORT_NS: Final = 250_000_000
_DENSE: Final = 20_000
"""Up to so many steps each gets a progress record; beyond, they thin out as the recorder's do, save where one is asked for."""


@dataclass(slots=True)
class Journal:
    """The journal of one run, under construction."""

    run: Run
    usual: int
    """What a step takes, ns; 0 = not known."""
    local: list[int]
    """Steps done after each of the run's steps."""
    waits: list[Known] = field(default_factory=list)
    """Waits for data too short for a span of their own, as in the recorder: their sum goes with the progress."""
    records: list[Record] = field(default_factory=list)
    saves: list[Record] = field(default_factory=list)
    rolled_back: list[int] = field(default_factory=list)
    """Steps that came again in the same process."""
    compile_ns: int = 0
    stalls: list[Step] = field(default_factory=list)

    def count_before(self, t: int, saved: int | None, offset: int) -> int:
        """Steps done when a save began at `t`, which Orbax calls `saved`."""
        index = bisect_right(self.run.steps, t, key=lambda step: step.start) - 1
        if index < 0:
            return 0
        step = self.run.steps[index]
        if saved is not None and saved + offset <= step.number:
            return self.local[index - 1] if index else 0
        return self.local[index]


def journal_of(run: Run, usual: int) -> Journal:
    """Start a run's journal."""
    local: list[int] = []
    done = 0
    for step in run.steps:
        done += step.covers
        local.append(done)
    return Journal(run, usual, local)


def step_offset(runs: list[Run]) -> int:
    """What to add to the step of a checkpoint to get the step that goes on from it: as seen where one was restored, else 1."""
    seen: Counter[int] = Counter()
    for run in runs:
        for known in run.known:
            if known.stage == "checkpoint_load" and known.step is not None:
                index = bisect_right(run.steps, known.start, key=lambda step: step.start)
                if index < len(run.steps):
                    seen[run.steps[index].number - known.step] += 1
    wanted = {offset: count for offset, count in seen.items() if offset in (0, 1)}
    return max(wanted, key=lambda offset: wanted[offset], default=1)


def fill(journals: list[Journal], offset: int, job: str) -> None:
    """Write all journals' records.

    Args:
        offset: see `step_offset`.
    """
    dense = sum(len(journal.run.steps) for journal in journals) <= _DENSE
    wanted = {journal.run.base for journal in journals}
    saves = 0
    for number, journal in enumerate(journals):
        journal.records.append(_head(journal.run, number, job))
        if journal.run.base is not None:
            journal.records.append({"k": "said", "t": journal.run.start, "local": 0, "step": journal.run.base})
        saves = _known(journal, offset, saves)
        _begin(journal)
        _steps(journal, wanted, dense=dense)
    for number in range(len(journals)):
        saves = _roll_backs(journals, number, saves)
    for journal in journals:
        journal.records[1:] = sorted(journal.records[1:], key=_written)
        if journal.run.ended in ("recorded", "inferred") and journal is journals[-1]:
            journal.records.append({"k": "exit", "t": journal.run.end, "step": journal.local[-1] if journal.local else 0})


def _written(record: Record) -> int:
    """When a recorder would have written it."""
    return int(record["end"] if "end" in record else record["t"])


def _head(run: Run, number: int, job: str) -> Record:
    return importing.head("rank", run.start, job=job, pid=number + 1, rank=0, world=1, start=run.start, entered=run.start, devices=1)


def _known(journal: Journal, offset: int, saves: int) -> int:
    """Spans of all intervals that the records name; returns how many saves there are now."""
    run = journal.run
    trained = run.steps[0].until if run.steps else run.end
    for known in run.known:
        if known.stage == LOAD and known.end - known.start < _SHORT_NS and known.start >= trained:
            journal.waits.append(known)
            continue
        record: Record = {"k": "span", "t": known.start, "name": known.stage, "end": known.end, "by": "user" if known.user else "found"}
        if known.stage == "checkpoint_save":
            saves += 1
            record.update(save=saves, step=journal.count_before(known.start, known.step, offset), part="orbax")
            if known.step is not None:
                record["id"] = {"path": _name(known.step + offset)}
            journal.saves.append(record)
        elif known.stage == "checkpoint_load":
            record.update(step=journal.count_before(known.start, None, offset), part="orbax")
        journal.records.append(record)
    if run.open_stage is not None and run.open_stage.start < run.end:
        stage = run.open_stage
        by = "user" if stage.user else "found"
        journal.records.append({"k": "span", "t": stage.start, "name": stage.stage, "end": run.end, "by": by, "part": "never ended"})
    return saves


def _name(step: int) -> str:
    """The checkpoint from which training goes on at that step."""
    return f"step {step}"


def _begin(journal: Journal) -> None:
    """The first step: what it takes longer than a usual one is compilation, at its begin."""
    steps = journal.run.steps
    if not steps:
        return
    first = steps[0]
    journal.records.append({"k": "mark", "t": first.start, "name": "first_forward"})
    journal.records.append({"k": "mark", "t": first.start, "name": "first_backward"})
    if not (journal.usual and first.done):
        return
    excess = journal.compile_ns = max(0, first.net - journal.usual * first.covers)
    for start, end in uncovered(first.start, first.until, journal.run.known):
        taken = min(excess, end - start)
        if taken > 0:
            span: Record = {"k": "span", "t": start, "name": "compile", "end": start + taken, "by": "found", "part": "first step's excess"}
            journal.records.append(span)
            excess -= taken


def _steps(journal: Journal, wanted: set[int | None], *, dense: bool) -> None:
    """Progress at the end of steps, and the steps that stalled."""
    limit = max(STALL_FACTOR * journal.usual, _SECOND) if journal.usual else 0
    due, power, wait, waits = 0, 1, 0, 0
    for index, (step, local) in enumerate(zip(journal.run.steps, journal.local, strict=True)):
        if not step.done:
            break
        if index == 0:
            journal.records.append({"k": "mark", "t": step.end, "name": "first_step"})
        elif limit and step.net // step.covers > limit:
            journal.stalls.append(step)
            journal.records.append({"k": "slow", "t": step.start, "end": step.end, "typical": journal.usual * step.covers})
        last = index + 1 == len(journal.run.steps) or not journal.run.steps[index + 1].done
        if dense or last or local >= power or step.end > due or step.number + step.covers in wanted:
            while waits < len(journal.waits) and journal.waits[waits].end <= step.end:
                wait += journal.waits[waits].end - journal.waits[waits].start
                waits += 1
            journal.records.append({"k": "prog", "t": step.end, "step": local, "wait": wait, "limit": limit})
            due = step.end + max(_SECOND, (step.end - journal.run.start) >> 7)
            while power <= local:
                power *= 2


def _roll_backs(journals: list[Journal], number: int, saves: int) -> int:
    """Where a step came again without a new attempt, a checkpoint was loaded, and so there was one, recorded or not."""
    journal = journals[number]
    loads = [record for record in journal.records if record.get("name") == "checkpoint_load"]
    for index, (step, following) in enumerate(pairwise(journal.run.steps)):
        if following.number > step.number:
            continue
        journal.rolled_back.append(following.number)
        name = _name(following.number)
        load = next((record for record in loads if step.start <= record["t"] < following.start), None)
        if load is None:
            load = {"k": "span", "t": following.start, "name": "checkpoint_load", "end": following.start, "by": "found"}
            journal.records.append(load)
        load.update(id={"path": name}, step=journal.local[index], part="rolled back")
        saved = (record for earlier in journals[: number + 1] for record in earlier.saves)
        if not any(record.get("id") == {"path": name} and record["end"] <= load["end"] for record in saved):
            saves += 1
            _assume_save(journals[: number + 1], following, saves)
    return saves


def _assume_save(journals: list[Journal], following: Step, saves: int) -> None:
    """A checkpoint that nobody recorded, taken when the step before `following` had last been done."""
    step = following.number
    for journal in reversed(journals):
        for done, local in reversed(list(zip(journal.run.steps, journal.local, strict=True))):
            if done.done and done.until <= following.start and done.number + done.covers == step:
                _add_save(journal, done.end, local, saves, step)
                return
        if journal.run.base == step:
            _add_save(journal, journal.run.start, 0, saves, step)
            return


def _add_save(journal: Journal, t: int, local: int, saves: int, step: int) -> None:
    record: Record = {"k": "span", "t": t, "name": "checkpoint_save", "end": t, "by": "found", "lane": 1, "save": saves, "step": local}
    record.update(id={"path": _name(step)}, part="not recorded, but gone back to")
    journal.records.append(record)
    journal.saves.append(record)



"""The sections of the text report, top to bottom. Each takes the sheet and returns its lines; none knows the others."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from ettrain.account.history import JobHistory
from ettrain.account.ledger import Account, AttemptRow, Incident, Leaf, Ledger
from ettrain.report.bars import Column, Ink, Scale, head, heading, legend, life_bar, row, stacked, wrapped
from ettrain.report.figures import can
from ettrain.report.metrics import NOT_CARRIED, group_sums, meaning_of, metrics_of, parts_of, short, show_some
from ettrain.report.notes import next_command, notes_of
from ettrain.report.palette import BY_KEY, group_of
from ettrain.report.startup import startup_of
from ettrain.report.units import cells, clean, clip, day_and_time, device_unit, duration, pad, percent, plural

ATTEMPTS_SHOWN: Final = 20
INCIDENTS_SHOWN: Final = 12
INCIDENTS_OF_MANY: Final = 6
PARTS_SHOWN: Final = 3
WIDE: Final = 100
"""Columns from which tables have bars beside them."""
LEAVES_SHOWN: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """What every section needs."""

    account: Account
    job: JobHistory
    width: int
    ink: Ink

    @property
    def ledger(self) -> Ledger:
        """The numbers."""
        return self.account.ledger


# ---- headline


def headline_section(sheet: Sheet) -> list[str]:
    """The number and what it means."""
    ledger, job, ink = sheet.ledger, sheet.job, sheet.ink
    facts = [ledger.status]
    if can(job, "devices"):
        facts.append(plural(ledger.devices, "device"))
    facts += [plural(len(ledger.attempts), "attempt"), duration(ledger.wall_ns), f"from {day_and_time(ledger.start)}"]
    lines = [f"{ink.bold(clip(clean(ledger.job), sheet.width))}", f"{ink.dim(clip(' · '.join(facts), sheet.width))}", ""]
    if not can(job, "ett"):
        return [*lines, *wrapped(f"Effective training time: {NOT_CARRIED}.", sheet.width)]
    if ledger.ett_pct is None:
        return [*lines, *wrapped("No time has passed on this job's hardware yet: there is nothing to account for.", sheet.width)]
    number = f"ETT {percent(ledger.effective_ns, ledger.wall_ns)}"
    bar = stacked(group_sums(ledger), sheet.width - len(number) - 6, ink)
    lines += [f"  {ink.bold(ink.group(BY_KEY['effective'], number))}  {bar}", ""]
    return [*lines, *wrapped(meaning_of(ledger, job), sheet.width)]


# ---- metrics


def metrics_section(sheet: Sheet) -> list[str]:
    """The L1 metrics, one line each."""
    metrics = list(metrics_of(sheet.account, sheet.job))
    lines = heading("KEY FIGURES", sheet.ink) if metrics else []
    for name, value, remark in metrics:
        shown = value if value != NOT_CARRIED else "-"
        left = f"  {pad(name, 20)} {pad(shown, 9, right=True)}   "
        notes = wrapped(NOT_CARRIED if value == NOT_CARRIED else remark, sheet.width - cells(left), first="", rest="")
        lines.append((left + sheet.ink.dim(notes[0])).rstrip() if notes else left.rstrip())
        lines += [" " * cells(left) + sheet.ink.dim(note) for note in notes[1:]]
    return lines


# ---- attempts


def attempts_section(sheet: Sheet) -> list[str]:
    """A bar per attempt on one time scale."""
    ledger, ink = sheet.ledger, sheet.ink
    if not ledger.attempts or not ledger.wall_ns or not can(sheet.job, "ett"):
        return []
    exits = max(cells(clean(attempt.exit)) for attempt in ledger.attempts)
    labels = len(f"#{len(ledger.attempts) - 1}") + 10 + min(exits, 18)
    scale = Scale(start=ledger.start, end=ledger.end, width=sheet.width - labels - 4)
    shown, more = show_some(len(ledger.attempts), ATTEMPTS_SHOWN)
    lines = heading("LIFE OF THE JOB", ink)
    lines[-1] += ink.dim(f"  one column is {duration(ledger.wall_ns // scale.width)}")
    first_gap = next((index for before, index in pairwise(shown) if index != before + 1), None)
    slices = _slices_by_attempt(ledger)
    if more:
        lines.append("  " + pad("all", labels + 2) + life_bar(ledger.slices, scale, ink))
    for index in shown:
        if index == first_gap:
            lines.append(ink.dim(f"  ... {more} more attempts"))
        attempt = ledger.attempts[index]
        label = f"  {_attempt_label(attempt, ledger, min(exits, 18))}"
        lines.append((label + "  " + life_bar(slices[index], scale, ink)).rstrip())
    lines.append(" " * (labels + 4) + ink.dim(_axis(ledger, scale.width)))
    return [*lines, *legend((key for key, ns in group_sums(ledger).items() if ns), sheet.width, ink)]


def _attempt_label(attempt: AttemptRow, ledger: Ledger, exit_width: int) -> str:
    number = pad(f"#{attempt.number}", len(f"#{len(ledger.attempts) - 1}"))
    return f"{number} {pad(duration(attempt.end - attempt.start), 7, right=True)}  {pad(clean(attempt.exit), exit_width)}"


def _slices_by_attempt(ledger: Ledger) -> list[list[tuple[int, int, str]]]:
    """The job's slices cut at the attempts' begins: the wait before an attempt stands in its row."""
    result: list[list[tuple[int, int, str]]] = [[] for _ in ledger.attempts]
    ends = [attempt.end for attempt in ledger.attempts]
    number = 0
    for begin, end, path in ledger.slices:
        start = begin
        while start < end:
            while number < len(ends) - 1 and ends[number] <= start:
                number += 1
            upto = end if number == len(ends) - 1 else min(end, ends[number])
            result[number].append((start, upto, path))
            start = upto
    return result


def _axis(ledger: Ledger, width: int) -> str:
    end = duration(ledger.wall_ns)
    middle = duration(ledger.wall_ns // 2)
    left = pad("0", max(1, width // 2 - len(middle) // 2)) + middle
    return left + pad(end, max(0, width - len(left)), right=True)


# ---- losses


def losses_section(sheet: Sheet) -> list[str]:
    """Lost time by leaf, worst first."""
    ledger, job, ink = sheet.ledger, sheet.job, sheet.ink
    leaves = [leaf for leaf in ledger.leaves if leaf.wall_ns]
    if not leaves or not can(job, "ett"):
        return []
    columns = _loss_columns(sheet)
    bar_width = sheet.width - 91 if sheet.width >= WIDE else 0
    lines = heading("WHERE THE TIME WENT", ink)
    lines.append(head(columns, ink, indent="    "))
    few = [leaf for index, leaf in enumerate(leaves) if index < LEAVES_SHOWN or 100 * leaf.wall_ns >= ledger.wall_ns]
    shown = few if len(leaves) - len(few) > 1 else leaves
    for leaf in shown:
        group = group_of(leaf.path)
        name, below = _parts(leaf, ledger, columns)
        values = [name, *_amounts(sheet, leaf.wall_ns, leaf.device_ns), clean(leaf.component)]
        bar = ink.group(group, group.glyph * max(1, bar_width * leaf.wall_ns // leaves[0].wall_ns)) if bar_width else ""
        text = row(columns, values, indent="")
        lines.append(f"  {ink.group(group, group.glyph)} {pad(text, 85) if bar else text}  {bar}".rstrip())
        lines += [ink.dim(line) for line in below]
    rest = leaves[len(shown) :]
    if rest:
        amounts = _amounts(sheet, sum(leaf.wall_ns for leaf in rest), sum(leaf.device_ns for leaf in rest))
        lines.append(row(columns, [f"{len(rest)} smaller ones, see --json", *amounts, ""], indent="    "))
    amounts = _amounts(sheet, ledger.wall_ns - ledger.effective_ns, ledger.device_wall_ns - ledger.effective_device_ns)
    return [*lines, ink.bold(row(columns, ["lost in all", *amounts, ""], indent="    "))]


def _loss_columns(sheet: Sheet) -> list[Column]:
    name = 35 if sheet.width < WIDE else 40
    unit = device_unit(sheet.ledger.device_wall_ns).title
    numbers = [Column(title, width, right=True) for title, width in (("time", 8), ("of wall", 7), (unit, 8))]
    return [Column("", name), *numbers, Column("component", 10)]


def _amounts(sheet: Sheet, wall_ns: int, device_ns: int) -> list[str]:
    hours = device_unit(sheet.ledger.device_wall_ns).show(device_ns) if can(sheet.job, "devices") else "-"
    return [duration(wall_ns), percent(wall_ns, sheet.ledger.wall_ns), hours]


def _parts(leaf: Leaf, ledger: Ledger, columns: list[Column]) -> tuple[str, list[str]]:
    """The leaf's name, and lines with its finer labels; a single label that fits joins the name."""
    name = short(leaf.path)
    if 200 * leaf.wall_ns < ledger.wall_ns:
        return name, []
    parts = parts_of(leaf, PARTS_SHOWN)
    if len(parts) == 1 and cells(f"{name} · {parts[0][0]}") <= columns[0].width:
        return f"{name} · {parts[0][0]}", []
    return name, [row(columns, [f"  {part}", duration(ns), "", "", ""], indent="    ") for part, ns in parts]


# ---- incidents


def incidents_section(sheet: Sheet) -> list[str]:
    """The interruptions: what happened, and what each cost."""
    ledger, job, ink = sheet.ledger, sheet.job, sheet.ink
    if not ledger.incidents or not can(job, "incidents"):
        return []
    columns = [Column(title, width, right=True) for title, width in _INCIDENT_COLUMNS]
    shown, more = show_some(len(ledger.incidents), INCIDENTS_SHOWN)
    if more:
        shown, more = show_some(len(ledger.incidents), INCIDENTS_OF_MANY)
    lines = heading("INTERRUPTIONS", ink)
    lines.append(head(columns, ink, indent="    "))
    for position, index in enumerate(shown):
        if more and position == INCIDENTS_OF_MANY // 2:
            lines.append(ink.dim(f"  ... {more} more; all are in --json"))
        incident = ledger.incidents[index]
        rank = f", rank {incident.diagnosis.rank}" if incident.diagnosis.rank is not None else ""
        what = f"{incident.diagnosis.cls}  ({incident.diagnosis.kind.replace('_', ' ')}, {incident.diagnosis.component}{rank})"
        after = f"after {duration(incident.at - ledger.start)}"
        lines.append(f"  #{incident.attempt}  {ink.bold(what)}  {ink.dim(after)}")
        lines.append("      " + clip(clean(incident.diagnosis.text), sheet.width - 6))
        lines.append(row(columns, _incident_values(incident, job), indent="    "))
    return lines


_INCIDENT_COLUMNS: Final = (
    ("detect", 7),
    ("reschedule", 10),
    ("restart", 7),
    ("recover", 7),
    ("catch up", 8),
    ("unsaved", 15),
    ("resumed at", 10),
)


def _incident_values(incident: Incident, job: JobHistory) -> list[str]:
    values = ["-"] * 4
    if can(job, "ttr"):
        values = [duration(incident.detect_ns), duration(incident.reschedule_ns), duration(incident.restart_ns)]
        values.append(duration(incident.time_to_recover_ns) if incident.recovered else "never")
    catch_up = incident.time_to_catch_up_ns if can(job, "ttc") else None
    values.append("-" if catch_up is None else duration(catch_up))
    error = f" ± {duration(incident.unsaved_error_ns)}" if incident.unsaved_error_ns else ""
    values.append(duration(incident.unsaved_ns) + error if can(job, "unsaved") else "-")
    values.append("-" if incident.resumed_step is None else f"step {incident.resumed_step}")
    return values


# ---- start-up


def startup_section(sheet: Sheet) -> list[str]:
    """What the first attempt's start consists of, and the mean of the restarts."""
    lines = heading("THE START, STAGE BY STAGE", sheet.ink)
    if not can(sheet.job, "tts"):
        return [*lines, f"  {NOT_CARRIED}"]
    start = startup_of(sheet.account)
    columns = [Column("", 34), Column("first", 9, right=True), Column("of it", 7, right=True)]
    if start.restarts:
        columns.append(Column(f"mean of {plural(start.restarts, 'restart')}", 19, right=True))
    lines.append(head(columns, sheet.ink))
    bar_width = max(0, min(30, sheet.width - 61 - 21 * bool(start.restarts)))
    group = BY_KEY["start"]
    for item in start.rows:
        name = clean(item.stage) + (f" · {clean(item.part)}" if item.part else "")
        values = [name, duration(item.first_ns), percent(item.first_ns, start.first_ns)]
        if start.restarts:
            values.append(duration(item.restart_ns // start.restarts))
        count = bar_width * item.first_ns // max(1, start.first_ns)
        text = pad(row(columns, values), 57 + 21 * bool(start.restarts))
        lines.append(f"{text}  {sheet.ink.group(group, group.glyph * count)}".rstrip())
    total = ["time to start", duration(start.first_ns), ""]
    if start.restarts:
        total.append(duration(start.restart_ns // start.restarts))
    return [*lines, sheet.ink.bold(row(columns, total))]


# ---- notes and the end


def notes_section(sheet: Sheet) -> list[str]:
    """How far the numbers can be trusted."""
    notes = notes_of(sheet.account, sheet.job)
    if not notes:
        return []
    lines = heading("NOTES", sheet.ink)
    for note in notes:
        text = wrapped(note.text, sheet.width, first="  ! " if note.level == "warning" else "  · ", rest="    ")
        lines += [sheet.ink.warn(text[0]), *map(sheet.ink.warn, text[1:])] if note.level == "warning" else text
    return lines


def next_section(sheet: Sheet, *, explained: bool, recompiles: bool, runs: str) -> list[str]:
    """What to type next."""
    command, why = next_command(sheet.account, sheet.job, explained=explained, recompiles=recompiles, runs=runs)
    return ["", f"Next: {sheet.ink.bold(command)}", f"      {sheet.ink.dim(why)}"]

"""The HTML report's body: headline, figures, the timeline's frame, tables, notes. Plain HTML; every foreign text goes through `esc`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from ettrain._version import VERSION
from ettrain.account.history import JobHistory
from ettrain.account.ledger import Account, Incident, Leaf, Ledger
from ettrain.account.publishes import publishes_of
from ettrain.report.figures import can
from ettrain.report.metrics import FORMULA, NOT_CARRIED, Metric, group_sums, meaning_of, metrics_of, parts_of, short, show_some
from ettrain.report.notes import next_command, notes_of, report_command
from ettrain.report.palette import GROUPS, fill_of, group_of
from ettrain.report.publishes import MEANING, TITLES, cells_of
from ettrain.report.startup import startup_of
from ettrain.report.units import clean, day_and_time, device_unit, duration, instant, percent, plural, unbroken

ROWS_SHOWN: Final = 200
PARTS_SHOWN: Final = 5


def esc(text: str) -> str:
    """A foreign text as HTML text or attribute value."""
    return escape(clean(text), quote=True)


def body_of(account: Account, job: JobHistory, remarks: Sequence[str], *, runs: str) -> str:
    """Everything inside `main`.

    Args:
        account: what the accounting says.
        job: the history it was made from.
        remarks: what the timeline leaves out.
        runs: what `--runs` must be given in the next command.
    """
    sections = (
        _header(account, job),
        _figures(account, job),
        _timeline(account, job, remarks),
        _losses(account.ledger, job),
        _incidents(account.ledger, job),
        _attempts(account.ledger),
        _startup(account, job),
        _publishes(job),
        _notes(account, job),
        _footer(account, job, runs),
    )
    return "\n".join(section for section in sections if section)


# ---- building stones


def _cell(content: str, *, css: str = "", head: bool = False) -> str:
    attributes = f' class="{css}"' if css else ""
    return f'<th scope="row"{attributes}>{content}</th>' if head else f"<td{attributes}>{content}</td>"


def _table(caption: str, titles: Sequence[tuple[str, str]], rows: Iterable[str], foot: str = "") -> str:
    """A table; `titles` are (text, class)."""
    heads = "".join(f'<th scope="col"{f""" class="{css}" """.rstrip() if css else ""}>{title}</th>' for title, css in titles)
    body = "\n".join(rows)
    end = f"<tfoot>{foot}</tfoot>" if foot else ""
    return (
        f'<div class="scroll"><table><caption>{caption}</caption>\n<thead><tr>{heads}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody>{end}</table></div>"
    )


def _swatch(fill: str) -> str:
    return f'<i class="swatch" style="background:{fill}" aria-hidden="true"></i>'


def _section(title: str, content: str) -> str:
    return f"<section>\n<h2>{title}</h2>\n{content}\n</section>"


# ---- the top


def _header(account: Account, job: JobHistory) -> str:
    ledger = account.ledger
    facts = [plural(ledger.devices, "device")] if can(job, "devices") else []
    facts += [plural(len(ledger.attempts), "attempt"), duration(ledger.wall_ns), f"from {day_and_time(ledger.start)}"]
    top = (
        f"<header><h1>{esc(ledger.job)}</h1>\n"
        f'<p class="facts"><span class="status {esc(ledger.status)}">{esc(ledger.status)}</span>{" · ".join(facts)}</p></header>'
    )
    if not can(job, "ett"):
        return f"{top}\n<section><p>Effective training time: {NOT_CARRIED}.</p></section>"
    if not ledger.wall_ns:
        return f"{top}\n<section><p>No time has passed on this job's hardware yet: there is nothing to account for.</p></section>"
    sums = group_sums(ledger)
    bars = "".join(
        f'<i style="flex-grow:{sums[group.key]};background:{group.fill}" title="{group.title} {percent(sums[group.key], ledger.wall_ns)}"></i>'
        for group in GROUPS
        if sums.get(group.key)
    )
    number = percent(ledger.effective_ns, ledger.wall_ns)
    return (
        f'{top}\n<section class="hero"><div class="number">{number}<small>effective training time</small></div>\n'
        f'<div><div class="stack" aria-hidden="true">{bars}</div><p class="meaning">{unbroken(esc(meaning_of(ledger, job)))}</p></div></section>'
    )


def _figures(account: Account, job: JobHistory) -> str:
    cards = "\n".join(_card(metric) for metric in metrics_of(account, job))
    return f'<dl class="figures">\n{cards}\n</dl>' if cards else ""


def _card(metric: Metric) -> str:
    absent = metric.value == NOT_CARRIED
    value = "–" if absent or metric.value == "-" else esc(metric.value)
    wide = ' class="wide"' if metric.name == FORMULA else ""
    remark = NOT_CARRIED if absent else unbroken(esc(metric.remark))
    return f'<div{wide}><dt>{metric.name}</dt><dd class="value">{value}</dd><dd class="remark">{remark}</dd></div>'


def _timeline(account: Account, job: JobHistory, remarks: Sequence[str]) -> str:
    ledger = account.ledger
    if not ledger.wall_ns or not can(job, "ett"):
        return ""
    present = {group_of(leaf.path).key for leaf in ledger.leaves if leaf.wall_ns or leaf.device_ns} | {"effective"}
    legend = "".join(
        f'<button type="button" data-group="{group.key}" aria-pressed="false" title="{group.meaning}">{_swatch(group.fill)}{group.title}</button>'
        for group in GROUPS
        if group.key in present
    )
    told = "".join(f'<p class="hint">{esc(remark)}</p>' for remark in remarks)
    content = (
        '<div class="title"><h2>Timeline<small>the job as its furthest-behind rank, then each rank</small></h2>'
        '<span class="range" id="range" role="status"></span>'
        '<span class="buttons"><button type="button" id="zoom-in" aria-label="Zoom in">+</button><button type="button" id="zoom-out" aria-label="Zoom out">−</button>'
        '<button type="button" id="zoom-all">whole job</button></span></div>\n'
        f'<div class="tools" role="group" aria-label="Legend: press one to single it out">{legend}</div>\n'
        '<div id="timeline"><canvas id="overview" aria-hidden="true"></canvas>\n'
        '<div id="view"><canvas id="rows" tabindex="0" role="img" aria-label="Timeline of the job and its ranks. '
        'The tables below say the same in numbers. Keys: plus, minus, zero, arrows."></canvas><div id="filler"></div></div>\n'
        '<div id="tip" aria-hidden="true"></div></div>\n'
        '<p class="hint">Wheel or + − zooms, drag or ← → pans, 0 shows the whole job; press a legend entry to single it out. '
        "Thin bars under a rank ran beside its main thread and are not billed. ▼ marks an interruption.</p>"
        f"{told}<noscript><p>The timeline needs JavaScript; the tables do not.</p></noscript>"
    )
    return f"<section>\n{content}\n</section>"


# ---- tables


def _losses(ledger: Ledger, job: JobHistory) -> str:
    leaves = [leaf for leaf in ledger.leaves if leaf.wall_ns or leaf.device_ns]
    if not leaves or not can(job, "ett"):
        return ""
    rows = [line for leaf in leaves for line in _loss_rows(leaf, ledger, job, max(leaves[0].wall_ns, 1))]
    lost = ledger.wall_ns - ledger.effective_ns
    unit = device_unit(ledger.device_wall_ns)
    hours = unit.show(ledger.device_wall_ns - ledger.effective_device_ns) if can(job, "devices") else "–"
    foot = (
        f'<tr><th scope="row">lost in all</th><td class="n">{duration(lost)}</td><td class="n">{percent(lost, ledger.wall_ns)}</td>'
        f'<td class="bar"></td><td class="n">{hours}</td><td></td></tr>'
    )
    titles = [("leaf", ""), ("time", "n"), ("of wall", "n"), ("", ""), (unit.title, "n"), ("component", "")]
    caption = "Wall time by leaf, worst first: the job is in the stage of its furthest-behind rank. Device time adds up all ranks."
    return _section("Where the time went", _table(caption, titles, rows, foot))


def _loss_rows(leaf: Leaf, ledger: Ledger, job: JobHistory, worst: int) -> list[str]:
    fill = fill_of(leaf.path)
    width = 100 * leaf.wall_ns / worst
    bar = f'<i style="width:{width:.2f}%;background:{fill}"></i>' if leaf.wall_ns else ""
    hours = device_unit(ledger.device_wall_ns).show(leaf.device_ns) if can(job, "devices") else "–"
    cells = [
        _cell(_swatch(fill) + esc(short(leaf.path)), head=True),
        _cell(duration(leaf.wall_ns), css="n"),
        _cell(percent(leaf.wall_ns, ledger.wall_ns), css="n"),
        _cell(bar, css="bar"),
        _cell(hours, css="n"),
        _cell(esc(leaf.component)),
    ]
    parts = parts_of(leaf, PARTS_SHOWN) if 200 * leaf.wall_ns >= ledger.wall_ns else []
    lines = [f"<tr>{''.join(cells)}</tr>"]
    for part, ns in parts:
        share = percent(ns, ledger.wall_ns)
        values = (
            _cell(esc(part), head=True) + _cell(duration(ns), css="n") + _cell(share, css="n") + '<td class="bar"></td><td></td><td></td>'
        )
        lines.append(f'<tr class="part">{values}</tr>')
    return lines


def _incidents(ledger: Ledger, job: JobHistory) -> str:
    if not ledger.incidents or not can(job, "incidents"):
        return ""
    shown, more = show_some(len(ledger.incidents), ROWS_SHOWN)
    rows = [_incident_row(ledger.incidents[index], ledger, job) for index in shown]
    titles = [("attempt", ""), ("after", "n"), ("class", ""), ("cause", "")]
    titles += [(name, "n") for name in ("detect", "reschedule", "restart", "to recover", "to catch up", "unsaved", "resumed at")]
    caption = "What interrupted the job, and what each interruption cost." + (f" {more:,} in the middle are left out here." if more else "")
    return _section("Interruptions", _table(caption, titles, rows))


def _incident_row(incident: Incident, ledger: Ledger, job: JobHistory) -> str:
    diagnosis = incident.diagnosis
    rank = f", rank {diagnosis.rank}" if diagnosis.rank is not None else ""
    recovery = ["–"] * 4
    if can(job, "ttr"):
        recovery = [duration(incident.detect_ns), duration(incident.reschedule_ns), duration(incident.restart_ns)]
        recovery.append(duration(incident.time_to_recover_ns) if incident.recovered else "never")
    catch_up = incident.time_to_catch_up_ns if can(job, "ttc") else None
    error = f" ± {duration(incident.unsaved_error_ns)}" if incident.unsaved_error_ns else ""
    numbers = [
        *recovery,
        "–" if catch_up is None else duration(catch_up),
        duration(incident.unsaved_ns) + error if can(job, "unsaved") else "–",
        "–" if incident.resumed_step is None else f"step {incident.resumed_step:,}",
    ]
    text = clean(diagnosis.text)
    cause = f"{diagnosis.kind.replace('_', ' ')}, {diagnosis.component}{rank}"
    cells = [
        _cell(f"#{incident.attempt}", head=True),
        _cell(f'<time datetime="{instant(incident.at)}">{duration(incident.at - ledger.start)}</time>', css="n"),
        _cell(f"<b>{esc(diagnosis.cls)}</b>"),
        _cell(f'{esc(cause)}<br><span class="dim">{esc(text[:600])}{"…" if len(text) > 600 else ""}</span>', css="cause"),
        *(_cell(number, css="n") for number in numbers),
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _attempts(ledger: Ledger) -> str:
    if not ledger.attempts:
        return ""
    shown, more = show_some(len(ledger.attempts), ROWS_SHOWN)
    rows: list[str] = []
    for index in shown:
        row = ledger.attempts[index]
        steps = "–" if row.first_step is None or row.last_step is None else f"{row.first_step:,} to {row.last_step:,}"
        cells = [
            _cell(f"#{row.number}", head=True),
            _cell(f'<time datetime="{instant(row.start)}">{day_and_time(row.start)}</time>'),
            _cell(duration(row.end - row.start), css="n"),
            _cell(esc(row.exit)),
            _cell(f"{row.ranks:,}", css="n"),
            _cell(steps, css="n"),
            _cell(_resumed(row.resume.source, row.resume.step)),
        ]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    titles = [("attempt", ""), ("began", ""), ("lasted", "n"), ("ended", ""), ("ranks", "n"), ("steps", "n"), ("went on from", "")]
    caption = "Each launch of the job's processes." + (f" {more:,} in the middle are left out here." if more else "")
    return _section("Attempts", _table(caption, titles, rows))


def _resumed(source: str, step: int) -> str:
    words = {
        "start": "the beginning",
        "fresh": "nothing: no checkpoint of this job was seen being loaded",
        "checkpoint": f"a checkpoint at step {step:,}",
        "continued": f"the good end of the program before it, at step {step:,}",
        "said": f"step {step:,}, by the program's word",
        "no step": "it trained no step",
    }
    return esc(words.get(source, source))


def _startup(account: Account, job: JobHistory) -> str:
    if not account.frames or not can(job, "tts", "ett"):
        return ""
    start = startup_of(account)
    titles = [("stage", ""), ("part", ""), ("first attempt", "n"), ("of it", "n")]
    if start.restarts:
        titles.append((f"mean of {plural(start.restarts, 'restart')}", "n"))
    rows = []
    for item in start.rows:
        cells = [
            _cell(esc(item.stage), head=True),
            _cell(esc(item.part)),
            _cell(duration(item.first_ns), css="n"),
            _cell(percent(item.first_ns, start.first_ns), css="n"),
        ]
        if start.restarts:
            cells.append(_cell(duration(item.restart_ns // start.restarts), css="n"))
        rows.append(f"<tr>{''.join(cells)}</tr>")
    foot = f'<tr><th scope="row">time to start</th><td></td><td class="n">{duration(start.first_ns)}</td><td></td>'
    foot += f'<td class="n">{duration(start.restart_ns // start.restarts)}</td></tr>' if start.restarts else "</tr>"
    table = _table("Wall time from the hardware to the first trained batch, in the order of the stages.", titles, rows, foot)
    return f"<section><details><summary>The start, stage by stage</summary>\n{table}</details></section>"


def _publishes(job: JobHistory) -> str:
    published = publishes_of(job)
    if not published:
        return ""
    titles = [(title, "n" if place > 1 else "") for place, title in enumerate(TITLES)]
    rows = []
    for one in published[-ROWS_SHOWN:]:
        name, outcome, *numbers = cells_of(one)
        why = f'<br><span class="dim">at {esc(one.stage)}: {esc(one.why[:600])}</span>' if one.why else ""
        cells = [_cell(esc(name), head=True), _cell(esc(outcome) + why, css="cause"), *(_cell(esc(number), css="n") for number in numbers)]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return _section("Published off the devices", _table(esc(MEANING), titles, rows))


def _notes(account: Account, job: JobHistory) -> str:
    notes = notes_of(account, job)
    if not notes:
        return ""
    items = "\n".join(f'<li class="{note.level}">{unbroken(esc(note.text))}</li>' for note in notes)
    return _section("Notes", f'<ul class="notes">\n{items}\n</ul>')


def _footer(account: Account, job: JobHistory, runs: str) -> str:
    command, why = next_command(account, job, explained=True, runs=runs)
    if " --html " in command:
        command, why = f"{report_command(account.ledger.job, runs)} --json", "the exact numbers, for programs"
    asked = f"<p>Command: <code>{esc(' '.join(job.command))}</code></p>" if job.command else ""
    return f"<footer>{asked}<p>Next: <code>{esc(command)}</code> {esc(why)}.</p><p>ettrain {VERSION}</p></footer>"

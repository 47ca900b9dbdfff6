"""Models published off the devices, in every form of the report: outcome, cost, and how long until the model was up to date."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Final

from ettrain.account.history import JobHistory
from ettrain.account.publishes import FAILED, PENDING, UNFINISHED, Publish, publishes_of
from ettrain.report.bars import Column, Ink, head, heading, row, wrapped
from ettrain.report.units import clean, clip, duration, instant, plural, seconds

SHOWN: Final = 8
TITLES: Final = ("", "outcome", "step", "CPU", "took", "to updated", "since step")
MEANING: Final = (
    "By processes without devices: not part of the wall time above. To updated: time to updated model, from the instant up to which "
    "the checkpoint holds the training to the instant the model became current; since step: from the last step before it was asked for."
)


def publishes_section(job: JobHistory, width: int, ink: Ink) -> list[str]:
    """The section of the text report; no line where nothing was published."""
    published = publishes_of(job)
    if not published:
        return []
    widths = (max(12, min(30, width - 68)), 11, 7, 8, 8, 10, 10)
    columns = [Column(title, size, right=place > 1) for place, (title, size) in enumerate(zip(TITLES, widths, strict=True))]
    lines = [*heading("PUBLISHED OFF THE DEVICES", ink), head(columns, ink)]
    shown = published[-SHOWN:]
    for one in shown:
        lines.append(row(columns, cells_of(one)))
        if one.why:
            lines.append(ink.dim(clip(f"    at {clean(one.stage)}: {clean(one.why)}", width)))
    if len(shown) < len(published):
        lines.append(ink.dim(f"    {plural(len(published) - len(shown), 'earlier one')}, see --json"))
    return [*lines, *map(ink.dim, wrapped(MEANING, width))]


def cells_of(one: Publish) -> list[str]:
    """A publication as the texts of a row: `TITLES`."""
    model, after = one.time_to_model_ns, one.after_last_step_ns
    return [
        clean(one.name), one.outcome, "-" if one.step is None else f"{one.step:,}", duration(one.cpu_ns), duration(one.wall_ns),
        "-" if model is None else duration(model), "-" if after is None else duration(after),
    ]  # fmt: skip


def publish_warnings(job: JobHistory) -> Iterator[str]:
    """What is not published although it was asked for: of each model, whether the last request is."""
    last = {one.name: one for one in publishes_of(job)}
    for one in last.values():
        name, again = clean(one.name), f"ett publish retry {shlex.quote(clean(one.place))}"
        if one.outcome == FAILED:
            yield f"Publishing {name} failed at {clean(one.stage)}: {clip(clean(one.why), 300)}. The model before it stays current. Again: {again}"
        elif one.outcome in (PENDING, UNFINISHED):
            yield f"Publishing {name} is not finished, as far as this job's folder tells: ett publish wait {shlex.quote(clean(one.place))}"


def publishes_dict(job: JobHistory) -> list[dict[str, object]]:
    """The same as JSON's own types: docs/report-json.md."""
    return [
        {
            "id": clean(one.id), "name": clean(one.name), "outcome": one.outcome, "step": one.step, "version": clean(one.version) or None,
            "stage": clean(one.stage), "why": clean(one.why) or None, "tries": one.tries, "asked": _at(one.asked), "switched": _at(one.switched),
            "cpu_s": seconds(one.cpu_ns), "wall_s": seconds(one.wall_ns), "time_to_updated_model_s": _seconds(one.time_to_model_ns),
            "after_last_step_s": _seconds(one.after_last_step_ns), "folder": clean(one.place),
        }
        for one in publishes_of(job)
    ]  # fmt: skip


def _at(t: int | None) -> str | None:
    return None if t is None else instant(t)


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else seconds(ns)

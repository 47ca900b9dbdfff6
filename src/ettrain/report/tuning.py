"""`ett autotune`: which kernels were searched for, what that took, what won and by how much. Frozen data in, text or JSON out."""

from __future__ import annotations

import shlex
from dataclasses import asdict

from ettrain.account.tunings import Searched
from ettrain.report.bars import Column, Ink, head, row, wrapped
from ettrain.report.units import clean, clip, duration, pad, plural, seconds
from ettrain.tuned import Tuned


def render_tuning(job: str, searches: list[Searched], *, width: int, colour: bool, following: str) -> str:
    """The ranking for a terminal.

    Args:
        job: the job's name.
        searches: longest first.
        width: columns.
        colour: whether escape sequences may be used.
        following: the command to type next.
    Returns:
        Lines that end with a newline.
    """
    ink = Ink(colour)
    if not searches:
        text = f"{clean(job)}: nothing was tuned. Inductor tunes under mode='max-autotune', Triton under @triton.autotune; in a program under ett run."
        return "\n".join(wrapped(text, width, first="", rest="")) + "\n"
    searched = sum(one.searches for one in searches)
    total = duration(sum(one.wall_ns for one in searches))
    lines = [f"{ink.bold(clean(job))}  {plural(len(searches), 'kernel')}, {searched} searched for, {total} in all (slowest rank)", ""]
    columns = [Column("kernel", 14), Column("search", 8, right=True), Column("best", 10, right=True), Column("gain", 7, right=True), Column("winner", 30)]
    lines.append(head(columns, ink))
    for one in searches:
        best = one.best
        lines.append(row(columns, [clean(best.op), _search(one), _ms(best.best_ms), gain(best), clean(best.winner)]))
        details = [f"on {clean(', '.join(best.inputs))}"]
        details += [f"config {clean(best.config)}"] if best.config else []
        details += [f"next best {clean(best.runner_up)} {_ms(best.runner_up_ms)}"] if best.runner_up else []
        details += [f"{one.winners} different winners: they are close"] if one.winners > 1 else []
        details += [f"! a pin was ignored: {clean(one.ignored)}"] if one.ignored else []
        lines += [ink.dim(pad("", 4) + clip(detail, width - 4)) for detail in details]
    return "\n".join([*lines, "", f"Next: {following}"]) + "\n"


def _search(one: Searched) -> str:
    if one.searches:
        return duration(one.wall_ns)
    return "pinned" if one.pinned else "cached" if one.cached else "-"


def _ms(ms: float | None) -> str:
    return "-" if ms is None else f"{ms:.4f} ms"


def gain(best: Tuned) -> str:
    """How much longer the next best choice takes: `1.17x`."""
    return f"{best.runner_up_ms / best.best_ms:.2f}x" if best.best_ms and best.runner_up_ms else "-"


def write_command(job: str, runs: str, name: str = "tuned.toml") -> str:
    """The command that writes the file."""
    return f"ett autotune {shlex.quote(clean(job))}{f' --runs {shlex.quote(clean(runs))}' if runs else ''} --write {name}"


def tuning_dict(job: str, searches: list[Searched]) -> dict[str, object]:
    """The same as JSON's own types: docs/autotune.md."""
    kernels = [
        {
            **asdict(one.best), "wall_s": seconds(one.wall_ns), "searches": one.searches, "cached": one.cached, "pinned": one.pinned,
            "winners": one.winners, "ignored": one.ignored,
        }
        for one in searches
    ]  # fmt: skip
    return {"schema": 1, "job": job, "search_s": seconds(sum(one.wall_ns for one in searches)), "kernels": kernels}

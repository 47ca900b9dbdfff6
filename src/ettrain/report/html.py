"""`ett report JOB --html`: one self-contained page. Here: the page as a whole and the timeline's data; the tables are in `htmlparts`.

Nothing on the page comes from elsewhere, and its own security policy forbids that anything could: the one script is named by its
hash, so that a name or an exception text of a job cannot run as code even if it were not escaped, which it is.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from string import Template
from typing import Final

from ettrain.account.history import JobHistory, Span
from ettrain.account.ledger import Account
from ettrain.lifecycle import STEADY, component_of, leaf_of, leaf_path
from ettrain.report.figures import can
from ettrain.report.htmlparts import body_of
from ettrain.report.metrics import short
from ettrain.report.palette import fill_of, group_of
from ettrain.report.tracks import Piece, Track, job_pieces, nested_lanes, thin, training_ns, whole_rank
from ettrain.report.units import clean, duration, plural

RANKS_DRAWN: Final = 64
RESOLUTION: Final = 4000
"""A row's tiles are not shorter than this part of the wall time."""
TILES_DRAWN: Final = 120_000
LANES_DRAWN: Final = 3
SPANS_PER_LANE: Final = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the timeline."""

    label: str
    kind: str
    """'job', 'rank', or 'lane' for spans beside a rank's main thread."""
    pieces: list[Piece]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What is drawn, and what is not."""

    rows: list[Row]
    remarks: list[str]


def render_html(account: Account, job: JobHistory, *, runs: str = "") -> str:
    """The report as one HTML file.

    Args:
        account: what the accounting says.
        job: the history it was made from.
        runs: what `--runs` must be given in the next command, '' where the default will do.
    """
    timeline = timeline_of(account, job)
    here = files("ettrain.report")
    style, script = ((here / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return Template((here / "page.html").read_text(encoding="utf-8")).substitute(
        title=escape(f"{clean(account.ledger.job)} · ETT report"),
        policy=policy,
        style=style,
        script=script,
        body=body_of(account, job, timeline.remarks, runs=runs),
        data=_embedded(timeline_data(account, job, timeline)),
    )


def timeline_of(account: Account, job: JobHistory) -> Timeline:
    """Choose what to draw: the job, then its ranks with what ran beside their main threads."""
    ledger = account.ledger
    if not ledger.wall_ns or not can(job, "ett"):
        return Timeline(rows=[], remarks=[])
    ranks, remarks = _chosen_ranks(account)
    shortest = max(ledger.wall_ns // RESOLUTION, ledger.wall_ns * (len(ranks) + 1) // TILES_DRAWN)
    tracks: list[Track] = [thin(job_pieces(account), shortest)]
    rows = [Row(label="job", kind="job", pieces=tracks[0].pieces)]
    for rank in ranks:
        tracks.append(thin(whole_rank(account, rank), shortest))
        rows.append(Row(label=f"rank {rank}", kind="rank", pieces=tracks[-1].pieces))
        lanes, omitted = _lanes_of(job, rank)
        rows += [Row(label=f"rank {rank}", kind="lane", pieces=lane) for lane in lanes]
        if omitted:
            remarks.append(f"Rank {rank}: {plural(omitted, 'short background span')} not drawn.")
    merged = sum(track.merged for track in tracks)
    if merged:
        remarks.append(
            f"For display only, {merged:,} tiles shorter than {duration(shortest)} are merged with their neighbours, "
            "the colours in the shares of what was merged. The tables and the JSON are exact."
        )
    return Timeline(rows=rows, remarks=remarks)


def _chosen_ranks(account: Account) -> tuple[list[int], list[str]]:
    trained = training_ns(account)
    if len(trained) <= RANKS_DRAWN:
        return sorted(trained), []
    behind = sorted(trained, key=lambda rank: (trained[rank], rank))[:RANKS_DRAWN]
    return sorted(behind), [f"Of {len(trained):,} ranks, the {RANKS_DRAWN} that trained least are drawn. The tables count all."]


def _lanes_of(job: JobHistory, rank: int) -> tuple[list[list[Piece]], int]:
    """Lanes of what ran beside a rank's main thread, and how many spans are left out."""
    spans = [span for attempt in job.attempts for other in attempt.ranks if other.rank == rank for span in other.background]
    lanes = nested_lanes(spans)
    omitted = sum(len(lane) for lane in lanes[LANES_DRAWN:])
    result: list[list[Piece]] = []
    for lane in lanes[:LANES_DRAWN]:
        kept = lane
        if len(lane) > SPANS_PER_LANE:
            kept = sorted(sorted(lane, key=lambda span: span.start - span.end)[:SPANS_PER_LANE], key=lambda span: (span.start, -span.end))
            omitted += len(lane) - SPANS_PER_LANE
        result.append([_background_piece(span) for span in kept])
    return result, omitted


def _background_piece(span: Span) -> Piece:
    return Piece(span.start, span.end, leaf_path(leaf_of(span.label.stage, STEADY), restart=False), span.label.part)


def timeline_data(account: Account, job: JobHistory, timeline: Timeline) -> dict[str, object]:
    """The timeline as the page's script reads it: times in µs since the job's start, tiles as (gap, length, leaf, part).

    A gap counts from the end of the tile before, in a lane from its begin: spans in a lane may nest.
    """
    ledger = account.ledger
    paths, parts = _Numbers(), _Numbers()
    parts.of("")
    rows = [{"label": row.label, "kind": row.kind, "tiles": _flat(row, ledger.start, paths, parts)} for row in timeline.rows]
    attempts = [[_us(row.start - ledger.start), _us(row.end - ledger.start), f"#{row.number} {clean(row.exit)}"] for row in ledger.attempts]
    return {
        "wall": _us(ledger.wall_ns) if timeline.rows else 0,
        "leaves": [_leaf(path) for path in paths.names],
        "parts": [clean(part) for part in parts.names],
        "rows": rows,
        "attempts": attempts,
        "incidents": _incidents(account, job),
    }


def _incidents(account: Account, job: JobHistory) -> list[list[object]]:
    if not can(job, "incidents"):
        return []
    ledger = account.ledger
    return [
        [
            _us(incident.at - ledger.start),
            f"{incident.diagnosis.cls} ({incident.diagnosis.component})",
            clean(incident.diagnosis.text)[:400],
            f"after {duration(incident.at - ledger.start)}",
        ]
        for incident in ledger.incidents
    ]


def _leaf(path: str) -> dict[str, str]:
    group = group_of(path)
    return {
        "name": short(path),
        "group": group.key,
        "fill": fill_of(path),
        "component": clean(component_of(path)),
        "meaning": group.meaning,
    }


class _Numbers:
    """Numbers for names, in the order of their first use."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._known: dict[str, int] = {}

    def of(self, name: str) -> int:
        """Number of a name."""
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = len(self.names)
            self.names.append(name)
        return found


def _flat(row: Row, origin: int, paths: _Numbers, parts: _Numbers) -> list[int]:
    numbers: list[int] = []
    before = 0
    for piece in row.pieces:
        start, end = _us(piece.start - origin), _us(piece.end - origin)
        if end <= start:
            continue
        numbers += (start - before, end - start, paths.of(piece.path), parts.of(piece.part))
        before = start if row.kind == "lane" else end
    return numbers


def _us(ns: int) -> int:
    return ns // 1000


def _embedded(data: dict[str, object]) -> str:
    """JSON that is safe inside a script element."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")

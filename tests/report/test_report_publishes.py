"""Publications in the report: in text, JSON and HTML; nothing of them where there were none."""

import json

import pytest
from reportjobs import at, clean_job

from ettrain.account.ledger import account
from ettrain.account.publishes import publish_event_of
from ettrain.report.contract import report_dict
from ettrain.report.html import render_html
from ettrain.report.text import render_text

NASTY = "\x1b[31m<script>alert(1)</script>"


def told(seconds, act, number="ranker-1", process="p1", **more):
    record = {"k": "publish", "id": number, "place": f"/to/r/requests/{number}", "name": "ranker", "checkpoint": "/ck", "act": act, **more}
    return publish_event_of(record, at(seconds), process)


GOOD = [told(380, "asked"), told(381, "began"), told(460, "ended", outcome="published", step=1200, created=at(370), version="step-00001200-1", tries=1, cpu=31_000_000_000, stage="switch")]
BAD = [told(382, "asked", "ranker-2"), told(383, "began", "ranker-2", "p2"), told(384, "ended", "ranker-2", "p2", outcome="failed", stage="check", why="it answers otherwise", cpu=2_000_000_000, tries=1)]


def job(events):
    made = clean_job()
    made.publish_events = list(events)
    return account(made), made


def text(events, width=100):
    return render_text(*job(events), width=width, colour=False, explain_startup=False)


def test_no_word_of_publications_where_there_were_none():
    assert "PUBLISHED" not in text([])
    assert report_dict(*job([]))["publishes"] == []
    assert "Published off" not in render_html(*job([]))


def test_the_section_says_what_came_of_it_and_how_old_the_model_is():
    lines = text(GOOD)
    row = next(line for line in lines.splitlines() if line.startswith("  ranker"))
    assert row.split() == ["ranker", "published", "1,200", "31.0", "s", "1m", "19s", "1m", "30s", *row.split()[9:]]
    assert "not part of the wall time above" in lines


def test_a_failure_is_a_warning_with_the_way_out():
    lines = " ".join(text([*GOOD, *BAD]).split())
    assert "at check: it answers otherwise" in lines
    assert "Publishing ranker failed at check: it answers otherwise. The model before it stays current. Again: ett publish retry /to/r/requests/ranker-2" in lines


def test_only_the_last_request_of_a_model_is_warned_about():
    later = [replace_id(event, 300) for event in BAD]
    assert "Publishing ranker failed" not in text([*later, *GOOD])


def replace_id(event, earlier_s):
    return event._replace(t=event.t - earlier_s * 1_000_000_000)


@pytest.mark.parametrize("width", [80, 100, 140])
def test_lines_stay_within_the_terminal(width):
    events = [event._replace(name="a-model-with-a-rather-long-name-that-goes-on", why="why " * 100 if event.act == "ended" else "") for event in [*GOOD, *BAD]]
    assert max(len(line) for line in text(events, width).splitlines()) <= width


def test_the_json_has_it_all():
    good, bad = report_dict(*job([*GOOD, *BAD]))["publishes"]
    assert (good["outcome"], good["cpu_s"], good["wall_s"], good["time_to_updated_model_s"], good["step"]) == ("published", 31.0, 79.0, 90.0, 1200)
    assert (bad["outcome"], bad["why"], bad["switched"], bad["time_to_updated_model_s"]) == ("failed", "it answers otherwise", None, None)


def test_the_page_has_a_table_of_them():
    page = render_html(*job([*GOOD, *BAD]))
    assert "Published off the devices" in page and "it answers otherwise" in page


def test_nothing_foreign_gets_through():
    events = [event._replace(name=NASTY, why=NASTY, place=NASTY, stage=NASTY, version=NASTY) for event in BAD]
    assert "\x1b" not in text(events)
    assert "\\u001b" not in json.dumps(report_dict(*job(events))["publishes"])
    assert "<script>alert" not in render_html(*job(events))


def test_every_key_is_in_the_docs():
    from pathlib import Path

    docs = (Path(__file__).resolve().parents[2] / "docs/report-json.md").read_text()
    section = docs[docs.index("## `publishes[]`") :]
    assert {key for key in report_dict(*job(GOOD))["publishes"][0] if f"`{key}`" not in section} == set()

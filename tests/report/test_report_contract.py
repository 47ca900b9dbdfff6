"""The JSON contract: its keys, its laws, and null where the source cannot carry a figure."""

import json
import re
from pathlib import Path

import pytest

from ettrain.report.contract import SCHEMA, report_dict
from ettrain.report.figures import FIGURES, can, carried

DOCS = Path(__file__).resolve().parents[2] / "docs" / "report-json.md"
PROMISED = {
    *("schema", "job", "status", "ett_pct", "ett_pct_with_queue", "ett_formula", "wall_s", "queue_s", "effective_s", "at_risk_s"),
    *("untracked_s", "devices", "device_wall_s", "leaves", "time_to_start_s", "time_to_shut_down_s", "checkpoint_blocking_s"),
    *("unsaved_s", "repeated_work_s", "number_of_failures", "number_of_preemptions", "incidents", "attempts", "recorder", "supports"),
}


def test_every_promised_key_is_there(any_story):
    report = report_dict(*any_story)
    assert report["schema"] == SCHEMA == 1
    assert set(report) >= PROMISED
    for incident in report["incidents"] or []:
        assert set(incident) >= {"kind", "class", "component", "rank", "at", "detect_s", "reschedule_s", "restart_s", "time_to_recover_s"}
        assert set(incident) >= {"time_to_catch_up_s", "unsaved_s", "unsaved_error_s", "resumed_step"}
    for attempt in report["attempts"]:
        assert set(attempt) >= {"number", "start", "end", "exit", "ranks", "first_step", "last_step"}
    assert set(report["recorder"]) >= {"faults", "journals", "torn_lines", "clock_correction_s"}


def test_it_is_strict_json(any_story):
    text = json.dumps(report_dict(*any_story), allow_nan=False)
    assert text.isascii()
    assert json.loads(text) == report_dict(*any_story)


def test_leaves_and_effective_time_are_the_wall_time_exactly(any_story):
    report = report_dict(*any_story)
    if report["leaves"] is None:
        pytest.skip("the source carries no leaves")
    assert sum(leaf["wall_ns"] for leaf in report["leaves"]) + report["effective_ns"] == report["wall_ns"]
    assert sum(leaf["device_ns"] for leaf in report["leaves"]) + report["effective_device_ns"] == report["device_wall_ns"]
    for leaf in report["leaves"]:
        assert sum(part["wall_ns"] for part in leaf["parts"]) == leaf["wall_ns"]
        assert leaf["repeated_ns"] <= leaf["wall_ns"]


def test_seconds_are_the_exact_nanoseconds(any_story):
    report = report_dict(*any_story)
    pairs = [report, *(report["leaves"] or [])]
    for table in pairs:
        for key in [key for key in table if key.endswith("_ns") and table[key] is not None]:
            assert round(table[key.removesuffix("_ns") + "_s"] * 10**9) == table[key]


def test_the_formula_differs_from_the_headline_by_its_residual(any_story):
    report = report_dict(*any_story)
    formula = report["ett_formula"]
    if formula is None:
        pytest.skip("no formula for this story")
    assert formula["value_pct"] - formula["residual_pct"] == pytest.approx(report["ett_pct"], abs=1e-9)
    assert sum(formula["residual_in"].values()) == pytest.approx(formula["residual_ns"] / 1e9)


def test_instants_are_iso_8601_in_utc(any_story):
    report = report_dict(*any_story)
    instants = [report["start"], report["end"], *(i["at"] for i in report["incidents"] or [])]
    instants += [a[key] for a in report["attempts"] for key in ("start", "end")]
    instants += [a["resume"]["snapshot"] for a in report["attempts"]]
    for text in instants:
        assert text is None or re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", text)


def test_known_numbers_of_two_failures(story):
    report = report_dict(*story("two_failures"))
    assert (report["status"], report["number_of_failures"], report["devices"]) == ("finished", 2, 2)
    assert report["start"] == "2025-11-29T16:00:00.000000Z"
    assert report["wall_s"] == 1000.5
    assert [i["class"] for i in report["incidents"]] == ["killed", "peer_lost"]
    assert report["incidents"][0]["rank"] == 1
    assert [i["resume_source"] for i in report["incidents"]] == ["checkpoint", "checkpoint"]
    assert report["incidents"][0]["detect_s"] == 3.5
    assert report["number_by_class"] == {"killed": 1, "peer_lost": 1}
    assert report["recorder"]["torn_lines"] == 1
    assert report["recorder"]["clock_correction_s"] == 0.023
    assert report["attempts"][1]["first_step"] == report["incidents"][0]["resumed_step"]


def test_the_queue_counts_in_the_second_figure_only(story):
    report = report_dict(*story("clean"))
    assert report["queue_s"] == 40.0
    assert report["ett_pct_with_queue"] == pytest.approx(100 * report["effective_s"] / (report["wall_s"] + 40.0))
    assert report_dict(*story("two_failures"))["ett_pct_with_queue"] is None


def test_a_running_job_has_no_end_and_says_what_is_at_risk(story):
    report = report_dict(*story("running"))
    assert (report["status"], report["end"], report["attempts"][0]["end"]) == ("running", None, None)
    assert report["at_risk_s"] > 0
    assert report["time_to_shut_down_s"] is None


def test_what_the_source_cannot_carry_is_null(story):
    account, job = story("unsupported")
    report = report_dict(account, job)
    assert report["supports"] == ["failures", "queue", "devices", "incidents"]
    for key in ("ett_pct", "ett_pct_with_queue", "ett_formula", "effective_s", "effective_ns", "leaves", "time_to_start_s", "unsaved_s"):
        assert report[key] is None, key
    assert report["time_to_shut_down_s"] is report["checkpoint_blocking_s"] is report["at_risk_s"] is report["trained"] is None
    assert (report["number_of_failures"], report["queue_s"], report["devices"]) == (1, 600.0, 1)
    incident = report["incidents"][0]
    assert incident["class"] == "killed"
    assert incident["time_to_recover_s"] is incident["unsaved_s"] is incident["time_to_catch_up_s"] is None


@pytest.mark.parametrize("figure", sorted(FIGURES))
def test_each_figure_can_be_missing(story, figure):
    from dataclasses import replace

    account, job = story("two_failures")
    less = replace(job, supports=tuple(name for name in FIGURES if name != figure))
    full, report = report_dict(account, job), report_dict(account, less)
    assert not can(less, figure)
    assert figure not in carried(less)
    changed = {key for key in full if full[key] != report[key]} - {"supports", "notes"}
    assert changed or figure == "queue", f"nothing hangs on {figure}"
    assert set(report) == set(full)


def test_a_job_without_attempts_is_all_there(story):
    report = report_dict(*story("nothing"))
    assert (report["ett_pct"], report["ett_formula"], report["wall_ns"], report["leaves"], report["attempts"]) == (None, None, 0, [], [])
    assert report["status"] == "running"


def test_a_start_that_never_came_is_marked(story):
    assert report_dict(*story("no_steps"))["time_to_start_reached"] is False
    assert report_dict(*story("clean"))["time_to_start_reached"] is True


def test_every_key_is_documented(story):
    text = DOCS.read_text(encoding="utf-8")
    report = report_dict(*story("two_failures"))
    documented = set(re.findall(r"`([a-z_]+(?:\[\])?(?:\.[a-z_]+)?)`", text))
    named = {name.split(".")[-1] for name in documented}
    objects = [
        report,
        report["leaves"][0],
        report["incidents"][0],
        report["attempts"][0],
        report["recorder"],
        report["attempts"][0]["resume"],
    ]
    for table in objects:
        assert {key for key in table if key not in named} == set()
    assert {figure for figure in FIGURES if f"| `{figure}` |" not in text} == set()

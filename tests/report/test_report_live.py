"""One look at a running job."""

import json

import pytest

from ettrain.report.live import live_dict, live_line, ranks_now, render_live
from ettrain.report.units import cells


@pytest.mark.parametrize(("width", "height"), [(60, 12), (79, 20), (120, 40)])
def test_the_screen_fits(any_story, width, height):
    text = render_live(*any_story, width=width, height=height, colour=False)
    assert text.endswith("\n")
    assert text.count("\n") <= height
    assert all(cells(line) <= width for line in text.splitlines())
    assert "\x1b" not in text


def test_it_says_what_each_rank_does(story):
    text = render_live(*story("running"), width=100, height=24, colour=False)
    assert "ETT so far 7" in text
    assert "training, step " in text
    assert "steady/evaluation" in text
    assert "at risk 40.0 s" in text
    first, second = ranks_now(*story("running"))
    assert (first.path, second.path, second.stage_ns) == ("effective", "steady/evaluation", 3_000_000_000)
    assert first.silence_ns < 1_000_000_000


def test_a_line_is_one_line(any_story):
    line = live_line(*any_story)
    assert "\n" not in line
    assert line.isprintable()


def test_the_dict_is_strict_json(any_story):
    look = json.loads(json.dumps(live_dict(*any_story), allow_nan=False))
    assert look["schema"] == 1
    assert {"job", "status", "at", "ett_pct", "at_risk_s", "steps", "attempts", "interruptions", "ranks"} <= set(look)


def test_before_the_first_attempt_it_waits(story):
    assert "waiting for the first attempt" in render_live(*story("nothing"), width=80, height=24, colour=False)
    assert live_dict(*story("nothing"))["ranks"] == []


def test_an_ended_rank_is_said_to_have_ended(story):
    assert "ended with code 0" in live_line(*story("clean"))
    assert "ETT so far" not in live_line(*story("clean"))

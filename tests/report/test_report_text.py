"""The text report: readable in 80 columns, honest, harmless; and the words it is made of."""

import re
import unicodedata
from dataclasses import replace

import pytest

from ettrain.report.bars import Ink, Scale, life_bar, stacked
from ettrain.report.metrics import group_sums
from ettrain.report.notes import next_command, notes_of
from ettrain.report.palette import ASCII, GROUPS
from ettrain.report.startup import startup_of
from ettrain.report.text import render_text
from ettrain.report.units import cells, clean, clip, device_unit, duration, instant, pad, percent, plural

NS = 1_000_000_000


def text_of(story, width=100, colour=False, explain=False):
    return render_text(*story, width=width, colour=colour, explain_startup=explain)


@pytest.mark.parametrize("width", [80, 100, 140])
def test_no_line_is_wider_than_the_terminal(any_story, width):
    text = text_of(any_story, width, explain=True)
    body = text[: text.index("\nNext: ")]
    assert [line for line in body.splitlines() if cells(line) > width] == []


def test_without_colour_there_is_no_escape(any_story):
    assert "\x1b" not in text_of(any_story)


def test_colour_changes_nothing_but_colour(any_story):
    painted = text_of(any_story, colour=True)
    assert "\x1b[" in painted
    assert re.sub(r"\x1b\[[0-9;]*m", "", painted) == text_of(any_story)


def test_foreign_texts_cannot_touch_the_terminal(story):
    text = text_of(story("nasty"), colour=False, explain=True)
    bad = {char for char in text if unicodedata.category(char) in ("Cc", "Cf", "Cs") and char != "\n"}
    assert bad == set()
    assert "\\x1b[31mred" in text


@pytest.mark.parametrize("name", ["clean", "two_failures", "running", "no_steps", "unsupported", "fresh", "nothing", "waiting"])
def test_the_text_is_the_golden_one(story, golden, name):
    golden(f"{name}-80.txt", text_of(story(name), 80, explain=name == "two_failures"))


def test_the_wide_text_is_the_golden_one(story, golden):
    golden("two_failures-140.txt", text_of(story("two_failures"), 140))


def test_the_headline_and_the_sections_are_there(story):
    text = text_of(story("two_failures"))
    assert "ETT 7" in text
    for title in ("KEY FIGURES", "LIFE OF THE JOB", "WHERE THE TIME WENT", "INTERRUPTIONS", "NOTES", "Next: "):
        assert title in text
    assert "killed" in text
    assert "rank 1 was ended by SIGKILL" in text


def test_a_job_that_never_saves_is_told_so(story):
    assert "Nothing protects this job's work" in text_of(story("fresh"))
    assert "Nothing protects" not in text_of(story("two_failures"))


def test_notes_name_what_cannot_be_trusted(story):
    notes = {note.text: note.level for note in notes_of(*story("fresh"))}
    found = " ".join(notes)
    assert "began afresh: no checkpoint of this job was seen being loaded" in found
    assert "1 of 2 ranks left no journal and is not in the numbers" in found
    assert "by the program's own word" in found
    assert "Steps were counted by: optimizer." in found
    levels = [note.level for note in notes_of(*story("fresh"))]
    assert levels == sorted(levels, key=("warning", "info").index)
    assert "recorder failed 2 times" in text_of(story("no_steps"), 140)
    assert "clocks disagreed: corrected by up to 23 ms" in text_of(story("two_failures"), 140)
    assert "1 journal line could not be read" in text_of(story("two_failures"), 140)


def test_what_the_source_cannot_carry_is_said(story):
    text = text_of(story("unsupported"))
    assert "Effective training time: not in this source." in text
    assert "ETT 0" not in text
    assert "WHERE THE TIME WENT" not in text


def test_a_thousand_attempts_fit_on_a_page(story):
    text = text_of(story("many"))
    assert len(text.splitlines()) < 100
    assert "... 980 more attempts" in text
    assert "994 more; all are in --json" in text


def test_where_recompilation_is_the_largest_loss_the_next_command_shows_what_varies(story):
    told, job = story("clean")
    leaf = replace(told.ledger.leaves[0], path="idle/steady/recompile", wall_ns=told.ledger.wall_ns)
    told = replace(told, ledger=replace(told.ledger, leaves=(*told.ledger.leaves, leaf)))
    assert next_command(told, job, explained=True)[0] == "ett report dlrm-nightly --recompiles"
    assert "--recompiles" not in next_command(told, job, explained=True, recompiles=True)[0]


def test_the_next_command_suits_the_job(story):
    assert next_command(*story("running"))[0] == "ett watch dlrm-nightly"
    assert next_command(*story("no_steps"))[0] == "ett run --job no-steps -- torchrun --nproc-per-node=2 train.py"
    assert next_command(*story("clean"))[0] == "ett report dlrm-nightly --explain-startup"
    assert next_command(*story("clean"), explained=True)[0] == "ett report dlrm-nightly --html dlrm-nightly.html"
    assert next_command(*story("two_failures"), runs="/a b")[0] == "ett report dlrm-nightly --runs '/a b' --html dlrm-nightly.html"


def test_the_starts_rows_add_up_to_time_to_start(any_story):
    account, _ = any_story
    start = startup_of(account)
    assert start.first_ns == sum(row.first_ns for row in start.rows) == account.ledger.time_to_start_ns


def test_the_start_names_the_parts_that_were_compiled(story):
    text = text_of(story("two_failures"), explain=True)
    assert "compile · forward" in text
    assert "imports · torch" in text
    assert "mean of 2 restarts" in text


def test_a_stacked_bar_is_as_wide_as_asked_and_hides_nothing(any_story):
    account, _ = any_story
    sums = {key: ns for key, ns in group_sums(account.ledger).items() if ns}
    bar = stacked(sums, 70, Ink(colour=False))
    assert len(bar) == (70 if sums else 0)
    assert {group.glyph for group in GROUPS if group.key in sums} == set(bar)


def test_a_bar_shows_what_takes_most_of_a_column():
    scale = Scale(start=0, end=100, width=10)
    slices = [(0, 14, "idle/start/compile"), (14, 60, "effective"), (60, 61, "failure/detect"), (90, 100, "effective")]
    assert life_bar(slices, scale, Ink(colour=False)) == "░█████!  █"


def test_every_glyph_has_an_ascii_one():
    text = "".join(group.glyph for group in GROUPS)
    assert text.translate(ASCII).isascii()
    assert len(set(text.translate(ASCII))) == len(GROUPS)


@pytest.mark.parametrize(
    ("ns", "words"),
    [
        (0, "0 s"),
        (900, "1 µs"),
        (1500, "1 µs"),
        (2_400_000, "2 ms"),
        (999_600_000, "1.0 s"),
        (41_230_000_000, "41.2 s"),
        (59_960_000_000, "1m 00s"),
    ]
    + [
        (130 * NS, "2m 10s"),
        (3599_600_000_000, "1h 00m"),
        (3720 * NS, "1h 02m"),
        (86_399 * NS, "1d 00h"),
        (276_000 * NS, "3d 05h"),
        (-NS, "-1.0 s"),
    ],
)
def test_durations_read_well(ns, words):
    assert duration(ns) == words


def test_shares_never_round_to_a_lie():
    assert percent(1, 10**9) == "<0.1%"
    assert percent(10**9 - 1, 10**9) == "99.9%"
    assert percent(10, 10) == "100.0%"
    assert percent(0, 10) == "0.0%"
    assert percent(0, 0) == "-"


def test_small_words():
    assert plural(1, "rank") == "1 rank"
    assert plural(1024, "rank") == "1,024 ranks"
    assert instant(1) == "1970-01-01T00:00:00.000000Z"
    assert device_unit(3600 * NS).title == "device-s"
    assert device_unit(3600 * NS).show(NS) == "1.00"
    assert device_unit(36_000 * NS).title == "device-h"
    assert device_unit(36_000 * NS).show(360_000 * NS) == "100.0"


def test_texts_are_cut_by_columns_not_by_characters():
    assert clean("a\x1b[0m\n\tb\u202e\ud800") == "a\\x1b[0m b\\x202e\\xd800"
    assert clip("日本語テキスト", 7) == "日本語…"
    assert cells(pad("日本語", 9)) == 9
    assert pad("abc", 5, right=True) == "  abc"

"""`ett report` and `ett watch` on folders: what they print, write, refuse."""

import json
import re

import pytest

from ettrain import cli
from ettrain.cli import report as report_command
from ettrain.cli import watch as watch_command
from ettrain.report.text import render_text


@pytest.fixture
def served(monkeypatch, tmp_path, story):
    """A runs folder whose newest job is one of the stories; the reader is replaced, so that no journal is needed."""

    def serve(*names):
        looks = iter([*names])
        state = {"last": names[-1]}

        class Reader:
            def __init__(self, paths):
                self.paths = paths

            def read(self):
                state["last"] = next(looks, state["last"])
                return story(state["last"])[1]

        (tmp_path / "runs" / "some-job" / "attempts").mkdir(parents=True, exist_ok=True)
        monkeypatch.setenv("ETT_RUNS", str(tmp_path / "runs"))
        monkeypatch.setattr(report_command, "JobReader", Reader)
        monkeypatch.setattr(watch_command, "JobReader", Reader)
        monkeypatch.setattr(watch_command.clock, "sleep_s", lambda seconds: None)
        return tmp_path

    return serve


def test_text_is_the_default(served, story, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    served("two_failures")
    assert cli.main(["report"]) == 0
    assert capsys.readouterr().out == render_text(*story("two_failures"), width=100, colour=False, explain_startup=False)


def test_explain_startup_adds_the_table(served, capsys):
    served("two_failures")
    assert cli.main(["report", "some-job", "--explain-startup"]) == 0
    assert "THE START, STAGE BY STAGE" in capsys.readouterr().out


def test_json_is_json_and_nothing_else(served, capsys):
    folder = served("two_failures")
    assert cli.main(["report", "--json", "--html", str(folder / "r.html")]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["schema"] == 1
    assert "wrote" in printed.err


def test_files_are_written_and_never_overwritten_unasked(served, capsys):
    folder = served("two_failures")
    page, trace = folder / "r.html", folder / "r.json"
    assert cli.main(["report", "--html", str(page), "--perfetto", str(trace)]) == 0
    printed = capsys.readouterr().out
    assert str(page) in printed
    assert str(trace) in printed
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    page.write_text("mine", encoding="utf-8")
    assert cli.main(["report", "--html", str(page)]) == 2
    assert page.read_text(encoding="utf-8") == "mine"
    assert "--force" in capsys.readouterr().err
    assert cli.main(["report", "--html", str(page), "--force"]) == 0
    assert page.read_text(encoding="utf-8") != "mine"


def test_what_cannot_be_written_is_said_in_one_line(served, capsys):
    folder = served("clean")
    assert cli.main(["report", "--html", str(folder / "no" / "such" / "r.html")]) == 2
    assert cli.main(["report", "--perfetto", str(folder)]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 2
    assert "Traceback" not in error


def test_an_unknown_job_is_said_in_one_line(served, capsys):
    served("clean")
    for command in ("report", "watch"):
        assert cli.main([command, "other"]) == 3
        assert "some-job" in capsys.readouterr().err


def test_the_runs_folder_is_repeated_where_it_must_be(served, capsys, monkeypatch):
    folder = served("two_failures")
    monkeypatch.delenv("ETT_RUNS")
    assert cli.main(["report", "--runs", str(folder / "runs")]) == 0
    assert f"--runs {folder / 'runs'}" in capsys.readouterr().out


def test_a_terminal_without_unicode_gets_other_glyphs(served, monkeypatch):
    import io
    import sys

    served("two_failures")
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii", newline=""))
    assert cli.main(["report"]) == 0
    sys.stdout.flush()
    text = raw.getvalue().decode("ascii")
    assert "####" in text
    assert "> first batch" in text


@pytest.mark.parametrize(
    ("env", "flags", "expected"),
    [({}, [], True), ({"NO_COLOR": "1"}, [], False), ({}, ["--no-color"], False), ({"TERM": "dumb"}, [], False)],
)
def test_colour_only_where_it_is_wanted(served, monkeypatch, capsys, env, flags, expected):
    import sys

    served("two_failures")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert cli.main(["report", *flags]) == 0
    assert ("\x1b[" in capsys.readouterr().out) is expected


def test_watch_appends_lines_and_ends_with_the_job(served, capsys):
    served("nothing", "running", "clean")
    assert cli.main(["watch"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "waiting for the first attempt" in lines[0]
    assert "ETT so far" in lines[1]
    assert lines[-1] == "The job has ended (finished). Next: ett report dlrm-nightly"


def test_watch_once_looks_once(served, capsys):
    served("running", "running")
    assert cli.main(["watch", "--once"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_watch_as_json_is_a_line_a_look(served, capsys):
    served("running", "running", "clean")
    assert cli.main(["watch", "--json"]) == 0
    looks = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [look["status"] for look in looks] == ["running", "running", "finished"]


def test_watch_redraws_in_place_on_a_terminal(served, monkeypatch, capsys):
    import sys

    served("running", "running", "clean")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert cli.main(["watch"]) == 0
    moves = [int(n) for n in re.findall(r"\x1b\[(\d+)F\x1b\[J", capsys.readouterr().out)]
    assert len(moves) == 2
    assert all(move > 4 for move in moves)


@pytest.mark.parametrize("interval", ["0", "-1", "1e9", "nan"])
def test_watch_refuses_a_senseless_interval(served, capsys, interval):
    served("running")
    assert cli.main(["watch", "--interval", interval]) == 2
    assert "--interval" in capsys.readouterr().err

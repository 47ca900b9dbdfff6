"""The journal: one line per record, one write per line, and a reader that drops and counts what a crash tore."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ettrain import events as e
from ettrain.beat import memory_beat, open_beat, read_beat
from ettrain.errors import JournalError
from ettrain.journal import JournalTail, JournalWriter

HEAD = {"k": "head", "schema": 1, "t": 1, "wall": 2}


@pytest.fixture
def journal(tmp_path):
    writer = JournalWriter(tmp_path / "j.jsonl")
    writer.write(HEAD)
    yield writer
    writer.close()


def test_what_was_written_is_read_once(journal, tmp_path):
    tail = JournalTail(tmp_path / "j.jsonl")
    assert tail.read_new() == [HEAD]
    journal.write({"k": "mark", "t": 5, "name": "x"})
    assert tail.read_new() == [{"k": "mark", "t": 5, "name": "x"}]
    assert tail.read_new() == []
    assert tail.head == HEAD


def test_a_torn_last_line_waits_until_it_is_whole(journal, tmp_path):
    path = tmp_path / "j.jsonl"
    tail = JournalTail(path)
    with path.open("ab") as file:
        file.write(b'{"k":"exit",')
    assert tail.read_new() == [HEAD]
    assert tail.torn
    with path.open("ab") as file:
        file.write(b'"t":7}\n')
    assert tail.read_new() == [{"k": "exit", "t": 7}]
    assert not tail.torn
    assert tail.bad_lines == 0


def test_lines_that_are_no_records_are_counted(journal, tmp_path):
    with (tmp_path / "j.jsonl").open("ab") as file:
        file.write(b'\n[]\n{"k":1}\n\xff\n{"t":1}\nnull\n{"k":"exit","t":1}\n')
    tail = JournalTail(tmp_path / "j.jsonl")
    assert [record["k"] for record in tail.read_new()] == ["head", "exit"]
    assert tail.bad_lines == 6


@pytest.mark.parametrize("content", [b"hello\n", b"\x00\x01", b'{"k":"span","t":1}\n', b'{"k":"head","t":1}\n', b'{"k":"head","schema":"1"}\n'])
def test_a_file_that_is_no_journal_is_refused(content, tmp_path):
    (tmp_path / "j").write_bytes(content)
    with pytest.raises(JournalError, match="no head record"):
        JournalTail(tmp_path / "j").read_new()


def test_a_newer_schema_is_refused_with_the_way_out(tmp_path):
    (tmp_path / "j").write_text('{"k":"head","schema":99}\n')
    with pytest.raises(JournalError, match=r"has schema 99.*pip install -U ettrain"):
        JournalTail(tmp_path / "j").read_new()


def test_a_missing_file_is_an_error_with_its_path(tmp_path):
    with pytest.raises(JournalError, match="cannot be read"):
        JournalTail(tmp_path / "nowhere").read_new()


def test_an_empty_file_is_a_journal_that_has_not_begun(tmp_path):
    (tmp_path / "j").touch()
    assert JournalTail(tmp_path / "j").read_new() == []


def test_an_exclusive_writer_takes_no_file_that_is_there(journal, tmp_path):
    with pytest.raises(FileExistsError):
        JournalWriter(tmp_path / "j.jsonl", exclusive=True)


def test_a_closed_writer_does_not_write_elsewhere(tmp_path):
    writer = JournalWriter(tmp_path / "j")
    writer.close()
    writer.close()
    with pytest.raises(OSError):
        writer.write(HEAD)


def test_many_records_at_once_are_the_same_lines(journal, tmp_path):
    records = [{"k": "mark", "t": t, "name": "x" * (t % 50)} for t in range(1000)]
    journal.write_all(records)
    assert JournalTail(tmp_path / "j.jsonl").read_new()[1:] == records


def test_a_long_file_is_read_in_pieces(journal, tmp_path, monkeypatch):
    monkeypatch.setattr("ettrain.journal._CHUNK", 100)
    records = [{"k": "mark", "t": t, "name": "x" * (t % 150)} for t in range(300)]
    journal.write_all(records)
    assert JournalTail(tmp_path / "j.jsonl").read_new()[1:] == records


texts = st.text(max_size=20)
values = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | texts, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=20)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.dictionaries(texts, values, max_size=8), st.integers(0, 10_000))
def test_any_record_fits_a_line_and_comes_back(fields, length):
    record = {"k": "note", "t": 5, **{f"f{key}": value for key, value in fields.items()}, "text": "ä\n" * length}
    line = e.encode(record)
    assert len(line) <= e.MAX_LINE
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    back = e.decode(line)
    assert back is not None
    assert (back["k"], back["t"]) == ("note", 5)
    if not back.get("cut"):
        assert json.dumps(back) == json.dumps(record)


def test_what_json_does_not_know_becomes_text():
    class Odd:
        def __str__(self):
            raise ValueError

    assert e.decode(e.encode({"k": "x", "path": {1}, "odd": Odd()})) == {"k": "x", "path": "{1}", "odd": "<Odd>"}


def test_records_and_beat_survive_sigkill(tmp_path):
    code = (
        "import os, sys, signal; from ettrain.journal import JournalWriter; from ettrain.beat import open_beat; from ettrain import events as e;"
        f"w = JournalWriter({str(tmp_path / 'j')!r}); w.write({HEAD!r}); b = open_beat({str(tmp_path / 'b')!r}, 7);\n"
        "for n in range(1000):\n w.write({'k': 'mark', 't': n, 'name': 'x'}); b[e.B_STEP] = n\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    assert len(JournalTail(tmp_path / "j").read_new()) == 1001
    beat = read_beat(tmp_path / "b")
    assert beat is not None
    assert (beat.pid, beat.step) == (7, 999)


def test_a_beat_page_is_read_as_typed_data(tmp_path):
    slots = open_beat(tmp_path / "b", 42)
    slots[e.B_STEP], slots[e.B_DEPTH] = 17, 2
    slots[e.B_STACK : e.B_STACK + 4] = memoryview(bytes(32)).cast("Q")
    slots[e.B_STACK], slots[e.B_STACK + 1], slots[e.B_STACK + 2], slots[e.B_STACK + 3] = 7, 100, 1001, 200
    beat = read_beat(tmp_path / "b")
    assert beat is not None
    assert (beat.pid, beat.step, beat.stack) == (42, 17, ((7, 100), (1001, 200)))


def test_more_open_stages_than_the_page_holds_are_cut(tmp_path):
    slots = memory_beat()
    slots[e.B_DEPTH] = 1000
    assert len(e.beat_from(slots).stack) == e.MAX_DEPTH


@pytest.mark.parametrize("content", [b"", b"x" * 100, bytes(8 * e.BEAT_SLOTS), b"y" * 8 * e.BEAT_SLOTS])
def test_what_is_no_beat_page_is_none(content, tmp_path):
    (tmp_path / "b").write_bytes(content)
    assert read_beat(tmp_path / "b") is None
    assert read_beat(tmp_path / "nowhere") is None


def test_a_beat_page_is_allocated_before_it_is_mapped(tmp_path):
    open_beat(tmp_path / "b", 1)
    assert os.stat(tmp_path / "b").st_blocks * 512 >= 8 * e.BEAT_SLOTS


def test_a_write_that_a_full_disk_cut_short_costs_no_other_line(tmp_path, monkeypatch):
    writer = JournalWriter(tmp_path / "j.jsonl")
    writer.write({"k": "head", "schema": 1, "t": 1})
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:5]))
    with pytest.raises(OSError, match="No space"):
        writer.write({"k": "prog", "t": 2, "step": 1})
    monkeypatch.undo()
    writer.write({"k": "prog", "t": 3, "step": 2})
    tail = JournalTail(tmp_path / "j.jsonl")
    assert [record["t"] for record in tail.read_new()] == [1, 3]
    assert tail.bad_lines == 1

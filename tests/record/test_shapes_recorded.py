"""What dynamo has seen goes into the journal: piece by piece where it is much, and no more than a limit."""

from types import SimpleNamespace

import pytest

from ettrain.account.assemble import dims_of
from ettrain.events import MAX_LINE, encode
from ettrain.record.hooks import shapes

DYNAMIC = object()


class Code(SimpleNamespace):
    __hash__ = object.__hash__


@pytest.fixture
def written(monkeypatch):
    records = []
    monkeypatch.setattr(shapes, "recorder", SimpleNamespace(emit=records.append))
    return records


def looker(states):
    sizes = shapes.Sizes()
    sizes.found = {"get_code_state": lambda: states, "auto_dynamic": DYNAMIC}
    return sizes


def tensor(*size):
    return SimpleNamespace(size=size, scalar=DYNAMIC)


def number(value):
    return SimpleNamespace(size=DYNAMIC, scalar=value)


def code_of(entries):
    return {Code(name="f", filename="/m.py", firstlineno=3): SimpleNamespace(automatic_dynamic=entries)}


def test_only_what_changed_is_written_again_with_what_it_was(written):
    entries = {"L['x']": tensor(5, 4), "L['n']": number(2), "L['p']": number(0.5), "L['y']": tensor(3)}
    sizes = looker(code_of(entries))
    sizes.look({"t": 1})
    entries |= {"L['x']": tensor(DYNAMIC, 4), "L['n']": number(DYNAMIC), "L['p']": number(DYNAMIC), "L['y']": SimpleNamespace(size=DYNAMIC, scalar=DYNAMIC)}
    sizes.look({"t": 2})
    sizes.look({"t": 3})
    first, second = written
    assert first["seen"] == {"L['x']": [5, 4], "L['n']": 2, "L['p']": 0.5, "L['y']": [3]}
    assert (second["t"], second["part"], second["where"]) == (2, "f", "/m.py:3")
    assert second["seen"] == {"L['x']": [None, 4], "L['n']": "int", "L['p']": "float", "L['y']": "rank"}
    assert second["was"] == first["seen"]


def test_many_sources_are_written_in_lines_that_fit(written):
    entries = {f"L['a rather long name of a feature, number {number}']": tensor(number, 2, 3) for number in range(400)}
    looker(code_of(entries)).look({"t": 1})
    assert len(written) > 5
    assert all(len(encode(record)) <= MAX_LINE and "cut" not in encode(record).decode() for record in written)
    assert {dims.source for record in written for dims in dims_of(record)} == set(entries)


def test_beyond_the_limit_only_that_there_are_more_is_written(written, monkeypatch):
    monkeypatch.setattr(shapes, "MAX_SOURCES", 50)
    sizes = looker(code_of({f"L['x'][{number}]": tensor(number) for number in range(5000)}))
    sizes.look({"t": 1})
    sizes.look({"t": 2})
    assert [record["seen"] for record in written if "*" in record["seen"]] == [{"*": "?"}]
    assert sum(len(record["seen"]) for record in written) <= 51

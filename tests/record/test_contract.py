"""torch's private names: all that are used exist in the torch at hand, and a torch without them is recorded as far as it goes."""

import ast

import pytest
from launching import HOME

from ettrain.record import hooks


def test_every_private_name_exists_in_this_torch(job):
    found = job.program("contract", "there")
    assert found == {"missing": [], "steps": 3, "faults": 0}
    assert job.records(kind="note") == []


def test_without_them_the_program_trains_and_the_journal_says_what_is_not_measured(job):
    found = job.program("contract", "gone")
    assert (found["steps"], found["faults"]) == (3, 0)
    notes = [record["text"] for record in job.records(kind="note")]
    for module, names in hooks.PRIVATE.items():
        assert f"not measured: this torch has no {module}.{names[0]}_gone" in notes
    assert job.records(kind="span", name="compile") == []


@pytest.mark.parametrize("path", sorted((HOME / "record/hooks").glob("*.py")), ids=lambda path: path.name)
def test_private_attributes_of_torch_are_only_used_where_they_were_looked_up(path):
    """An attribute with one underscore of anything but `self` and `recorder` stands in PRIVATE, or is ours."""
    known = {part for names in hooks.PRIVATE.values() for name in names for part in name.split(".")}
    known |= {"_ett_loop", "_torchdynamo_inline"}
    used = {
        node.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "recorder"))
    }
    assert used <= known

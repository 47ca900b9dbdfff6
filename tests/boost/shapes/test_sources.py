"""The language of dynamic sources: our reading of it is torch's, and the value proposed marks what varied and nothing that did not."""

import warnings

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch._dynamo.variables.builder import is_dynamic_source

from ettrain.account.sources import Place, entry_for, is_valid, joined, marks, shortest

KEYS = st.one_of(st.sampled_from(["a b", "z-a", "x,y", "it's", 'say "x"', "x.y", "p|q", "C1", "C2", "C12", "[0]", "a[b", "(", "$", "^", "a\\d", "é", ":3", "#"]), st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=4))
STEPS = st.one_of(
    st.integers(0, 30).map("[{}]".format), KEYS.map(lambda key: f"[{key!r}]"), st.sampled_from([".step", ".scale", ".scale2", "._modules['h'].k", "[(1, 2)]"])
)
SOURCES = st.builds(lambda head, steps: head + "".join(steps), st.sampled_from(["L['x']", "L['ids']", "L['self']", "L['xy']", "G['x']"]), st.lists(STEPS, max_size=3))
PLACES = st.builds(Place, SOURCES, st.one_of(st.none(), st.integers(0, 2)))
LOOSE = settings(deadline=None, max_examples=300, suppress_health_check=list(HealthCheck))


def torch_marks(value, place):
    with torch.compiler.config.patch(dynamic_sources=value):
        return is_dynamic_source(place.source, place.dim)


@LOOSE
@given(st.sets(PLACES, max_size=12), st.sets(PLACES, max_size=12))
def test_the_value_marks_all_that_varied_and_nothing_that_stayed_and_torch_agrees(varied, stayed):
    value = shortest(varied, stayed)
    assert is_valid(value)
    clash = {place for place in varied if any(marks(entry_for(place), other) for other in stayed)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [place for place in varied - clash if not torch_marks(value, place)] == []
        assert [place for place in stayed if torch_marks(value, place)] == []
    assert len(value) <= len(",".join(entry_for(place) for place in varied))


@LOOSE
@given(PLACES, PLACES)
def test_an_entry_marks_its_own_place_alone(place, other):
    entry = entry_for(place)
    assert is_valid(entry)
    assert torch_marks(entry, place)
    same = other.source == place.source and (place.dim is None or other.dim in (None, place.dim))
    assert torch_marks(entry, other) is same


@LOOSE
@given(st.text("LG[]'x0: ,.\\d$*|", max_size=12), PLACES)
def test_our_reading_of_any_value_is_torchs(value, place):
    if is_valid(value):
        assert marks(value, place) == torch_marks(value, place)


def test_many_alike_become_one_entry():
    ids = [Place(f"L['ids'][{number}]", 0) for number in range(26)]
    assert shortest([*ids, Place("L['n']")], [Place("L['dense']", 1)]) == r"L['n'],L\['ids'\]\[\d+\]$"
    assert shortest(ids, [Place("L['ids'][0]", 1)]) == r"L\['ids'\]\[\d+\]$:0"


def test_one_that_stayed_among_many_alike_is_left_out():
    value = shortest([Place(f"L['d']['C{number}']", 0) for number in range(1, 9)], [Place("L['d']['C9']", 0)])
    assert value == r"L\['d'\]\['C(1|2|3|4|5|6|7|8)'\]$"
    assert not marks(value, Place("L['d']['C9']", 0))
    assert not marks(value, Place("L['d']['C10']", 0))


def test_a_tensor_that_varied_in_all_its_dimensions_needs_none_named():
    assert shortest([Place("L['x']", 0), Place("L['x']", 1)], []) == "L['x']"
    assert shortest([Place("L['x']", 0), Place("L['x']", 1)], [Place("L['x']", 2)]) == "L['x']:0,L['x']:1"


@pytest.mark.parametrize("source", ["", "L['a\nb']", "L['\x00']"])
def test_a_name_that_no_environment_can_hold_is_left_alone(source):
    assert shortest([Place(source, 0)], []) == ""


def test_values_are_joined():
    assert joined("", "a") == joined("a", "") == "a"
    assert joined("a", "b") == "a,b"

"""Sharded tensors built without asking: equal to those that were gathered, and refused where the ranks disagree."""

import pytest


@pytest.fixture
def told(three_ranks):
    return three_ranks["shards"]


@pytest.mark.parametrize("case", ["rows", "a rank without rows", "columns", "chunks"])
def test_it_is_the_tensor_that_gathering_builds_and_takes_no_collective(told, case):
    assert [one[case] for one in told] == [[1, 0, True]] * 3


def test_it_can_be_saved_and_loaded(told):
    assert [one["loaded"] for one in told] == [[[0.0]], [[1.0]], [[2.0]]]


def test_what_cannot_be_known_is_asked_for(told):
    assert all("Pass dtype=" in one["no dtype"] for one in told)


def test_ranks_that_hold_something_else_are_found_by_the_check(told):
    assert all("by what the ranks hold" in one["ranks disagree"] for one in told)


def test_uneven_parts_make_a_dtensor_without_a_collective(told):
    assert all(one["dtensor"] and one["dtensor calls"] == 0 for one in told)
    assert "should hold (24, 2) of (70, 2), and holds (3, 2)" in told[0]["wrong part"]


def test_a_plan_that_fails_on_one_rank_fails_on_all(told):
    assert [one["plan failed"] for one in told] == ["no space", "rank 0 could not plan: ValueError: no space", "rank 0 could not plan: ValueError: no space"]


def test_plan_caching_sends_less_and_saves_what_is_there(three_ranks):
    first = three_ranks["planning"][0]
    assert first["right"] == [True] * 14
    plain, cached = first["plain"], first["cached"]
    assert cached[2] < plain[2] / 2
    assert cached[6] < plain[6] * 1.5

"""Counts at sizes that no test machine has, with torch's fake process group."""

import pytest
from commranks import run_ranks


@pytest.fixture(scope="module")
def told():
    (one,) = run_ranks("manyranks", 1, 8, 64, 512)
    return one


def test_a_mesh_makes_one_group_per_dimension_once(told):
    assert {world: counts[0] for world, counts in told["meshes"].items()} == {"8": 6, "64": 20, "512": 132}
    for world, (_, ours, shared, outer, place) in told["meshes"].items():
        assert ours == 2
        assert shared
        assert (outer, place) == (int(world) // 4, [0, 0])


def test_the_number_of_tables_drops_out_of_the_number_of_collectives(told):
    assert told["tables"] == {world: [5, 0, True] for world in ("8", "64", "512")}

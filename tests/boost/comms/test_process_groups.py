"""One group per set of ranks: the same for all who ask, made by its members, connected when used, in whatever order they ask."""

import ast

import pytest
from commranks import ROOT

from ettrain.boost.comms.private import PRIVATE, UnsupportedTorchError, lookup


@pytest.fixture
def told(three_ranks):
    return three_ranks["groups"]


def test_the_same_ranks_get_the_same_group(told):
    assert all(one["all"] and one["same"] for one in told)


def test_members_that_ask_in_contradicting_orders_do_not_wait_for_each_other(told):
    assert [one["sums"] for one in told] == [[True, True]] * 3


def test_making_a_group_asks_nobody_and_asking_again_makes_nothing(told):
    for one in told:
        assert one["made"] == {"set": 2}
        assert one["asked again"] == {}


def test_it_takes_fewer_store_operations_than_new_group(told):
    for one in told:
        ours, plain = (sum(counts.values()) for counts in ({**one["made"], **{f"used {k}": n for k, n in one["used"].items()}}, one["plain made"]))
        assert ours < plain
        assert one["plain sums"] == [True, True]


def test_who_is_no_member_gets_no_group(told):
    assert all(one["outside"] == [True] for one in told)


def test_another_timeout_is_another_group_that_works(told):
    for one in told:
        assert one["timeout is another"]
        assert one["gathered"] == [0, 1, 2]


def test_a_destroyed_group_is_made_anew(told):
    assert all(one["anew"] for one in told)


def test_a_device_bound_to_all_ranks_is_not_bound_to_the_group_and_is_bound_again_after(told):
    assert all(one["bound device"] == ["None", True] and one["bound sums"] for one in told)


def test_a_mesh_uses_the_same_groups(told):
    assert all(one["mesh"] for one in told)
    assert [one["part"] for one in told] == [[0, 1], [2, 3], [4, 5]]


def test_what_cannot_be_done_is_said(told):
    for one in told:
        assert "init_process_group first" in one["before"]
        assert "init_process_group first" in one["gone"]
        assert "from 0 to 2" in one["wrong ranks"]
        assert "holds 4 ranks, the job has 3" in one["wrong shape"]


def test_the_environment_is_left_as_it_was(told):
    assert not any(one["lazy left"] for one in told)


def test_every_private_name_exists_in_this_torch():
    for module, names in PRIVATE.items():
        for name in names:
            assert lookup(module, name, "") is not None
    with pytest.raises(UnsupportedTorchError, match=r"this torch has no json\.nothing\. Do that\."):
        lookup("json", "nothing", "Do that.")


def test_private_attributes_of_torch_stand_in_the_table():
    known = {part for names in PRIVATE.values() for name in names for part in name.split(".")}
    for name in ("groups", "mesh", "shards"):
        tree = ast.parse((ROOT / f"src/ettrain/boost/comms/{name}.py").read_text())
        used = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
            and not (isinstance(node.value, ast.Name) and node.value.id == "self")
        }
        assert used <= known | {"_init_from_local_shards", "_stats", "_shard"}, name

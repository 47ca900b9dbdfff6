"""docs/accounting.md holds the tables that decide: every leaf and stage, and both orders as the code has them."""

from __future__ import annotations

import re
from pathlib import Path

from ettrain import lifecycle
from ettrain.fleet import goodputruns

TEXT = (Path(__file__).resolve().parents[2] / "docs/accounting.md").read_text(encoding="utf-8")


def test_every_stage_leaf_and_component_is_explained():
    leaves = {*lifecycle.COMPONENT, *lifecycle.PRIORITY}
    assert {name for name in leaves if f"{name}`" not in TEXT} == set()
    assert {component for component in lifecycle.COMPONENT.values() if component not in TEXT} == set()


def test_the_order_of_found_stages_is_the_code_s():
    assert ", ".join(f"`{stage}`" for stage in lifecycle.PRIORITY) in TEXT


def test_the_order_of_the_wall_view_is_the_code_s():
    assert ", ".join(f"`{leaf}`" for leaf in lifecycle.ORDER) in TEXT


def test_every_leaf_path_of_the_table_is_one_that_can_occur():
    table = re.findall(r"`idle/(start|steady|shutdown)/([a-z_]+)`", TEXT)
    for phase, name in table:
        assert f"{phase}/{name}" in lifecycle.ORDER, f"{phase}/{name}"
        assert name in lifecycle.COMPONENT


def test_the_stall_rule_of_an_import_is_the_recorder_s():
    from ettrain.record.recorder import STALL_FACTOR

    assert goodputruns.STALL_FACTOR == STALL_FACTOR == 10

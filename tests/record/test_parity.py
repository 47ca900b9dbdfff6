"""A program computes, sees and says the same with the recorder as without."""

import json
import os
import subprocess
import sys

import pytest
from launching import PROGRAMS


def bare(program, cwd, **more):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("ETT_", "PYTHONPATH"))} | {"OMP_NUM_THREADS": "1"} | more
    return subprocess.run([sys.executable, PROGRAMS / f"{program}.py"], cwd=cwd, env=env, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def runs(module_job):
    without = bare("parity", module_job.cwd)
    return json.loads(without.stdout), json.loads(module_job.run(PROGRAMS / "parity.py").stdout), without.stderr


@pytest.mark.parametrize("what", ["weights", "rng", "by_reference", "optimizer", "module", "signals", "warnings", "threads", "modules", "scaler"])
def test_what_a_program_computes_and_sees_is_the_same(runs, what):
    without, with_us, _ = runs
    assert with_us[what] == without[what]


def test_wrapped_functions_look_as_they_are(runs):
    without, with_us, _ = runs
    for name, description in without["functions"].items():
        assert with_us["functions"][name] == description


def test_it_was_recorded_all_the_while(runs, module_job):
    _ = runs
    assert module_job.beat().step == 20
    assert module_job.beat().faults == 0


@pytest.fixture(scope="module")
def compiled(module_job):
    without = bare("compile_parity", module_job.cwd)
    with_us = module_job.run(PROGRAMS / "compile_parity.py", attempt=1)
    return json.loads(without.stdout), json.loads(with_us.stdout), without.stderr, with_us.stderr


COMPILED = [
    "compiled_function_first", "compiled_module", "module_compile_in_place", "whole_step", "compiled_optimizer", "gradients_inside", "modes_inside",
    "aot_with_lazy_backward", "loop_with_loader",
]


@pytest.mark.parametrize("name", COMPILED)
def test_dynamo_makes_the_same_of_a_compiled_step(compiled, name):
    numbers, frames, stats, breaks, rng = compiled[0][name]
    ours = compiled[1][name]
    assert ours[0] == numbers
    assert ours[2:] == [stats, breaks, rng], "graphs, operations in them, graph breaks"
    if name in ("whole_step", "compiled_optimizer"):
        # torch's loop over its optimizer hooks, which has no tensors in it, runs as Python
        assert ours[1]["ok"] - frames["ok"] in range(-1, 8)
    else:
        assert ours[1] == frames


def test_dynamo_has_the_same_rules_for_wrapped_functions(compiled):
    assert compiled[1]["rules"] == compiled[0]["rules"]


def test_dynamo_warns_of_nothing_more(compiled):
    assert len(compiled[3].splitlines()) == len(compiled[2].splitlines())

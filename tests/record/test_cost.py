"""What the recorder costs: budgets of docs and architecture, by the fastest of many short rounds, so that a busy machine passes too."""

import json
import os
import subprocess
import sys

import pytest
from launching import PROGRAMS


@pytest.fixture(scope="module")
def costs(module_job):
    return module_job.program("costs")


@pytest.mark.parametrize(("what", "budget_ns"), [("ett.step", 1500), ("all hooks of a step", 5000), ("a stage", 20_000)])
def test_the_hot_path_keeps_its_budget(costs, what, budget_ns):
    assert costs[what] < budget_ns


def test_outside_a_job_a_step_and_a_stage_cost_next_to_nothing(module_job):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("ETT_", "PYTHONPATH"))}
    done = subprocess.run([sys.executable, PROGRAMS / "costs.py", "explicit"], env=env, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["ett.step"] < 300
    assert found["a stage"] < 2000


def cpu_ms(command, env):
    pid = os.posix_spawn(command[0], command, env)
    _, status, usage = os.wait4(pid, 0)
    assert status == 0
    return (usage.ru_utime + usage.ru_stime) * 1000


def compare(job, code, rounds):
    """Fastest (bare, recorded) of several."""
    bare = {k: v for k, v in os.environ.items() if not k.startswith(("ETT_", "PYTHONPATH"))}
    times = [(cpu_ms([sys.executable, "-c", code], bare), cpu_ms([sys.executable, "-c", code], job.env())) for _ in range(rounds)]
    return min(bare for bare, _ in times), min(ours for _, ours in times)


def test_a_python_that_never_imports_torch_pays_under_5_ms(job):
    bare, ours = compare(job, "import json, logging, subprocess", 15)
    assert ours - bare < 5


@pytest.mark.slow
def test_importing_torch_costs_under_5_percent_more(job):
    bare, ours = compare(job, "import torch, os; os._exit(0)", 10)
    assert ours < 1.05 * bare

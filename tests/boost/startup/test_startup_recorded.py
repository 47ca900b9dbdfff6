"""`ett.Startup` under a real `ett run`: who is billed, the graph in the report, ranks that must agree, what is left behind."""

import json
import subprocess
import sys

import pytest
from startupjobs import PROGRAMS, clean_environment, ett, ledger_of, recorded, torchrun

from ettrain.account.startruns import critical_path


@pytest.fixture(scope="module")
def overlapped(tmp_path_factory):
    folder = tmp_path_factory.mktemp("overlapped")
    return folder, *recorded(folder, PROGRAMS / "overlap.py", RANK=0)


@pytest.fixture(scope="module")
def sequential(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sequential")
    return folder, *recorded(folder, PROGRAMS / "overlap.py", options=["--sequential"], RANK=0)


def run_of(history):
    (rank,) = history.attempts[0].ranks
    (run,) = rank.start_runs
    return run


def test_the_start_is_within_1_15_of_its_critical_path(overlapped):
    path = critical_path(run_of(overlapped[2]))
    assert path.took_ns <= 1.15 * path.path_ns
    assert path.sum_ns > 1.5 * path.took_ns


def test_overlap_changes_no_result_and_no_random_number(overlapped, sequential):
    assert overlapped[1]["result"] == sequential[1]["result"]
    assert not overlapped[2].attempts[0].ranks[0].start_runs[0].sequential
    assert run_of(sequential[2]).sequential
    assert sequential[1]["took"] > 1.5 * overlapped[1]["took"]


def test_nothing_of_it_is_left(overlapped):
    assert overlapped[1]["threads"] == 1
    assert overlapped[1]["children"] == []
    assert overlapped[1]["elsewhere"]


def test_the_main_threads_waiting_is_billed_to_the_stages_it_waited_for(overlapped):
    path = critical_path(run_of(overlapped[2]))
    ledger = ledger_of(overlapped[2])
    walls = {leaf.path: leaf.wall_ns for leaf in ledger.leaves}
    assert sum(walls.values()) + ledger.effective_ns == ledger.wall_ns
    billed = sum(ns for leaf, ns in walls.items() if leaf.rsplit("/", 1)[-1] in {"process_group_init", "train_module_creation", "loader", "model", "signals", "index", "head"})
    assert billed == pytest.approx(path.took_ns, rel=0.02)
    took = {row.stage.name: row.took_ns for row in path.rows}
    if [row.stage.name for row in path.rows if row.critical] == ["process_group", "train_module_creation"]:
        assert walls["idle/start/process_group_init"] == pytest.approx(took["process_group"] - took["signals"], rel=0.1)
        assert walls["idle/start/train_module_creation"] == pytest.approx(took["train_module_creation"], rel=0.1)
    assert walls["idle/start/signals"] == pytest.approx(took["signals"], rel=0.1)


def test_stages_beside_the_main_thread_are_shown_and_not_billed(overlapped):
    (rank,) = overlapped[2].attempts[0].ranks
    assert {"loader", "process_group_init", "model", "train_module_creation"} <= {span.label.stage for span in rank.background}


def test_the_report_shows_the_critical_path(overlapped, sequential):
    told = ett("report", "job", "--runs", overlapped[0] / "runs", "--explain-startup", cwd=overlapped[0]).stdout
    assert "* train_module_creation" in told and "overlapping saved" in told
    told = ett("report", "job", "--runs", sequential[0] / "runs", "--explain-startup", cwd=sequential[0]).stdout
    assert "without overlap, as asked" in told
    report = json.loads(ett("report", "job", "--runs", overlapped[0] / "runs", "--json", cwd=overlapped[0]).stdout)
    (run,) = report["startup_runs"]
    assert run["critical_path"][-1] == "train_module_creation"
    assert run["stages"][0]["begin_s"] < 0.5 and {"thread", "main", "collective", "process"} == {stage["lane"] for stage in run["stages"]}
    assert run["saved_s"] == pytest.approx(run["sum_s"] - run["wall_s"])


def test_a_kill_while_waiting_is_billed_to_the_start(tmp_path):
    _, history = recorded(tmp_path, PROGRAMS / "killed.py", code=None, RANK=0)
    walls = {leaf.path: leaf.wall_ns for leaf in ledger_of(history).leaves}
    assert walls["idle/start/startup"] > 0.3e9


@pytest.mark.slow
def test_ranks_that_are_ready_at_other_moments_keep_the_declared_order(tmp_path):
    done = subprocess.run([sys.executable, *torchrun(2, PROGRAMS / "ranks.py")], env=clean_environment(), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(line for line in done.stdout.splitlines() if line.startswith("rank")) == ["rank 0: 2.0 20.0", "rank 1: 2.0 20.0"]


def test_ranks_with_other_orders_fail_fast_and_say_so(tmp_path):
    done = subprocess.run([sys.executable, *torchrun(2, PROGRAMS / "ranks.py", "differ")], env=clean_environment(), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    assert "rank 0 process_group_init > one > two; rank 1 process_group_init > two > one" in done.stderr

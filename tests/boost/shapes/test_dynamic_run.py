"""Dynamic sources, learned and applied: real programs, really compiled, under a real `ett run`."""

import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
AUTO = ("--dynamic-sources", "auto")


NAMES = ["a", "b", "a b", "z-a", "it's, so", "x.y[0]"]
VARIED = [("L['dense']", 0), ("L['scale']", None), ("L['self'].gain", None), *((f"L['ids'][{name!r}]", 0) for name in NAMES)]
STAYED = [("L['dense']", 1), ("L['fixed']", 0), ("L['self'].gain2", None), ("L['scale2']", None), ("L['ids']['ab']", 0), ("L['self']._modules['dense']._parameters['weight']", 0)]
ALL = {source if dim is None else f"{source}:{dim}" for source, dim in VARIED}


@pytest.fixture(scope="module")
def two_runs(module_runs):
    """The same program, first as it is, then with `auto`; some of its names are full of what the parser of torch misreads."""
    return module_runs.run("first", "jagged", "--backend", "eager"), module_runs.run("second", "jagged", "--backend", "eager", ett=AUTO)


def shown_to(runs, program, **env):
    """What the environment of that program would hold: a command that names its file is the same program to `ett run`."""
    words = ("printenv", "TORCH_COMPILE_DYNAMIC_SOURCES", PROGRAMS / f"{program}.py")  # ends with code 1: there is no variable of that name
    return runs.ett("run", "--runs", "runs", *AUTO, "--", *words, code=1, **env)


def test_the_second_run_compiles_each_graph_once(two_runs, module_runs):
    (first, silent), (second, said) = two_runs
    assert first["graphs"] == 1 + len(VARIED)
    assert not any("dynamic" in line for line in silent), "a run without the option teaches, and changes nothing"
    assert second["graphs"] == 1
    assert any("learned from earlier attempts" in line for line in said)
    told = module_runs.report("second")
    assert told["recompilations"] == []
    assert told["applied"] == [told["dynamic_sources"]] == [second["value"]]


def test_the_results_are_the_same_bit_for_bit(two_runs):
    (first, _), (second, _) = two_runs
    assert first["value"] == ""
    assert first["state"] == second["state"]


def test_torch_takes_the_value_for_what_varied_and_for_nothing_that_stayed(two_runs):
    import torch
    from torch._dynamo.variables.builder import is_dynamic_source

    with torch.compiler.config.patch(dynamic_sources=two_runs[1][0]["value"]):
        assert [place for place in VARIED if not is_dynamic_source(*place)] == []
        assert [place for place in STAYED if is_dynamic_source(*place)] == []


def test_the_report_names_each_recompilation_by_its_source(two_runs, module_runs):
    told = module_runs.report("first")
    assert told["dynamic_sources"] == two_runs[1][0]["value"]
    assert told["clashes"] == []
    assert [one["kind"] for one in told["recompilations"]].count("number") == 2
    assert {source for one in told["recompilations"] for source in one["sources"]} == set(told["marked"]) == ALL
    assert all(one["curable"] and one["wall_s"] > 0 and one["hint"] == "" for one in told["recompilations"])
    (dense,) = [one for one in told["recompilations"] if one["sources"] == ["L['dense']:0"]]
    assert (dense["was"], dense["expected"], dense["actual"]) == (["16"], "16", "9")
    text = module_runs.text("first")
    assert "ett run --dynamic-sources auto -- " in text
    assert "L['dense']:0  16 -> 9" in text


def test_a_restart_learns_from_the_attempt_that_was_killed(runs):
    last, said = runs.run("killed", "jagged", "--kill-at", 7, "--backend", "eager", ett=(*AUTO, "--restarts", 1))
    (applied,) = [line for line in said if "learned from earlier attempts" in line]
    assert "ids" in applied
    assert "dense" not in applied
    assert last["graphs"] == 4, "what the killed attempt had not met yet (gain, scale, dense) is learned in the second"
    assert set(runs.report("killed")["marked"]) == ALL


def test_what_the_environment_holds_stays_and_is_added_to(two_runs, module_runs):
    mine = r"L\['(dense|fixed)'\]"
    done = shown_to(module_runs, "jagged", TORCH_COMPILE_DYNAMIC_SOURCES=mine)
    assert done.stdout.startswith(mine + ",")
    assert "dense" not in done.stdout.removeprefix(mine)
    assert "is set and stays" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_in_full_the_results_are_the_same_as_well(runs, backend):
    first, _ = runs.run("one", "jagged", "--backend", backend)
    second, _ = runs.run("two", "jagged", "--backend", backend, ett=AUTO)
    assert (first["graphs"], second["graphs"]) == (1 + len(VARIED), 1)
    assert first["state"] == second["state"] or abs(first["loss"] - second["loss"]) <= 1e-5 * abs(first["loss"])


def test_ranks_teach_together(runs):
    torchrun = [str(Path(sys.executable).parent / "torchrun"), "--standalone", "--nproc-per-node", "2", str(PROGRAMS / "ranks.py")]
    first = runs.ett("run", "--runs", "runs", "--job", "one", "--", *torchrun)
    assert sorted(first.stdout.split()[2::4]) == ["2", "2"]
    told = runs.report("one")
    assert told["marked"] == ["L['a']:0", "L['b']:0"]
    assert [(one["ranks"], one["count"]) for one in told["recompilations"]] == [(1, 1), (1, 1)]
    assert shown_to(runs, "ranks").stdout.strip() == r"L\['(a|b)'\]$"


def test_a_value_is_handed_on_and_a_broken_one_refused(runs):
    done = runs.ett("run", "--runs", "runs", "--dynamic-sources", "L['scale']", "--", "printenv", "TORCH_COMPILE_DYNAMIC_SOURCES")
    assert done.stdout.strip() == "L['scale']"
    done = runs.ett("run", "--runs", "runs", "--dynamic-sources", "L['z-a']", "--", "true", code=2)
    assert "regular expression" in done.stderr


def test_nothing_known_is_no_error(runs):
    done = runs.ett("run", "--runs", "runs", "--job", "x", *AUTO, "--", "true")
    assert "nothing is known yet of dynamic shapes in true" in done.stderr

"""`ett report --recompiles`: causes that no dynamic source cures are told apart, each with what to do."""

import pytest


@pytest.fixture(scope="module")
def causes(module_runs):
    module_runs.run("causes", "causes")
    return module_runs.report("causes")


def of(causes, function, kind):
    found = [one for one in causes["recompilations"] if (one["function"], one["kind"]) == (function, kind)]
    assert len(found) == 1, [(one["function"], one["kind"], one["reason"]) for one in causes["recompilations"]]
    return found[0]


@pytest.mark.parametrize(
    ("function", "kind", "name", "hint"),
    [
        ("shapes", "value", "flag", "keep flags constant"),
        ("shapes", "dtype", "x", "cast before the call"),
        ("strided", "stride", "x", "contiguous"),
        ("mode", "mode", "grad_mode", "one graph per mode"),
        ("small", "zero_one", "x", "drop_last"),
    ],
)
def test_a_cause_that_no_dynamic_source_cures_has_its_hint(causes, function, kind, name, hint):
    one = of(causes, function, kind)
    assert one["name"] == name
    assert not one["curable"]
    assert hint in one["hint"]


def test_a_function_compiled_too_often_is_named_and_took_no_time(causes):
    (refused,) = [one for one in causes["recompilations"] if one["refused"]]
    assert refused["function"] == "often"
    assert refused["wall_s"] == 0
    assert "recompile_limit" in refused["hint"]


def test_what_stays_in_another_function_under_the_same_name_is_never_marked(causes):
    assert causes["dynamic_sources"] == ""
    (clash,) = causes["clashes"]
    assert clash["place"] == "L['x']:0"
    assert any(function.startswith("other (") for function in clash["stays_in"])
    assert causes["dynamic_sources_wider"] == "L['x']:0"
    one = of(causes, "shapes", "size")
    assert not one["curable"]
    assert "stays the same in another function" in one["hint"]


def test_the_text_says_it_and_proposes_nothing(module_runs, causes):
    text = module_runs.text("causes")
    assert "No dynamic source cures these" in text
    assert "--dynamic-sources auto" not in text
    assert "mark_dynamic" in text
    assert "other (causes.py:" in text


def test_all_but_what_is_to_be_copied_stays_within_the_width(module_runs, causes):
    text = module_runs.ett("report", "causes", "--runs", "runs", "--recompiles", COLUMNS="80").stdout
    section = text[text.index("RECOMPILATIONS") : text.index("KEY FIGURES")]
    assert [line for line in section.splitlines() if len(line) > 80 and "TORCH_COMPILE" not in line and "ett run" not in line] == []


def test_a_job_that_never_compiled_says_so(runs):
    runs.ett("run", "--runs", "runs", "--job", "x", "--", "true")
    assert runs.report("x")["recompilations"] == []
    assert "Nothing was compiled" in runs.text("x")

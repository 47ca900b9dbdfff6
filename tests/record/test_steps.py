"""What is a step: the rule on plain integers, and on real torch loops of every kind."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ettrain.record.stepcount import StepRule


def count(events):
    """Steps the rule counts; an event is 'b' (backward), 'n' (new batch), or an optimizer's number."""
    rule, steps = StepRule(), 0
    for event in events:
        if event in ("b", "n"):
            rule.activity += 1
            rule.batches += event == "n"
        else:
            steps += rule.optimizer_called(event + 1)
    return steps


@pytest.mark.parametrize(
    ("iteration", "per_iteration"),
    [
        (["b", 0], 1),
        (["n", "b", 0], 1),
        (["b", "b", "b", 0], 1),
        (["n", "b", 0, "b", 1], 1),
        (["b", 0, 1, 2, 3], 1),
        (["b", 0, 0], 1),
        (["n", "n", "b", 0, 1], 1),
        (["n", "b", 0, "b", 1, "b", 2], 1),
    ],
)
def test_an_iteration_is_one_step_whatever_happens_in_it(iteration, per_iteration):
    assert count(iteration * 50) == 50 * per_iteration


def test_no_step_without_a_backward_or_a_batch_since_the_last():
    assert count(["b", 0, 0, 0, 0]) == 1


def test_a_second_optimizer_that_starts_later_adds_no_steps():
    assert count(["n", "b", 0] * 10 + ["n", "b", 0, "b", 1] * 10) == 20


def test_of_optimizers_that_take_turns_a_round_is_an_iteration():
    assert count((["n", "b", 0] + ["n", "b", 1]) * 10) == 10 + 1


def test_a_wgan_counts_its_critic():
    assert count((["n", "b", 0] * 3 + ["b", 1]) * 5) == 15


@given(st.lists(st.one_of(st.sampled_from(["b", "n"]), st.integers(0, 3)), max_size=200))
def test_there_are_never_more_steps_than_calls_or_activity(events):
    calls = sum(not isinstance(event, str) for event in events)
    activity = 1 + len(events) - calls
    assert count(["b", *events]) <= min(calls, activity)


EXPECTED = {
    "plain": (5, 5, 5),
    "accumulation": (5, 5, 20),
    "accumulation_with_loader": (5, 5, 20),
    "gan": (5, 10, 10),
    "four_optimizers_in_backward": (5, 20, 5),
    "apply_optimizer_in_backward": (5, 20, 5),
    "zero_redundancy": (5, 10, 5),
    "subclass_calling_super": (5, 10, 5),
    "subclass_of_its_own": (5, 5, 5),
    "wrapper_optimizer": (5, 10, 5),
    "base_stepped_twice": (5, 15, 5),
    "duck_typed_wrapper": (5, 5, 5),
    "lbfgs_closures": (5, 5, None),
    "fused": (5, 5, 5),
    "foreach": (5, 5, 5),
    "scheduler": (5, 5, 5),
    "bound_step_captured": (5, 5, 5),
    "grad_scaler_with_infinities": (5, 5, 7),
    "grad_scaler_disabled": (5, 5, 5),
    "manual_sgd": (5, 0, 5),
    "reentrant_checkpoint_by_hand": (5, 0, 5),
    "reentrant_checkpoint": (5, 5, 5),
    "autograd_grad": (5, 5, 0),
    "loaders_zipped": (5, 5, 5),
    "gan_with_two_loaders": (5, 10, 10),
    "optimizer_made_anew_with_loader": (5, 5, 5),
    "compiled_optimizer_step": (5, 5, 5),
    "two_models_in_turn": (3, 5, 5),
}


@pytest.fixture(scope="module")
def matrix(module_job):
    return module_job.program("step_matrix")


@pytest.mark.parametrize("name", list(EXPECTED))
def test_steps_are_iterations(matrix, name):
    steps, calls, backwards = EXPECTED[name]
    found = matrix[name]
    assert found is not None, "the child failed"
    assert (found["steps"], found["calls"]) == (steps, calls)
    assert found["beat_step"] == steps
    assert backwards is None or found["backwards"] == backwards
    assert found["source"] == ("backward" if calls == 0 else "optimizer")


def test_steps_skipped_by_a_gradient_scaler_are_counted_apart(matrix):
    found = matrix["grad_scaler_with_infinities"]
    assert (found["skipped"], found["beat_skipped"]) == (2, 2)
    assert matrix["grad_scaler_disabled"]["skipped"] == 0

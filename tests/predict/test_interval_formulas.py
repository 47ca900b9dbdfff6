"""The formulas of the checkpoint interval: against a published example, a simulation, a search for the maximum, and one another."""

import math
import random

import pytest

from ettrain.errors import UsageError
from ettrain.predict.interval import asynchronous, availability_optimal, daly, efficiency, exact, wasted_share, young

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
CASES = [(60, 600, 3 * HOUR), (10, 600, 3 * HOUR), (1, 600, 3 * HOUR), (300, 900, HOUR), (5, 300, DAY), (30, 420, 7.9 * HOUR)]
"""Cost of a save, of a restart, mean time between failures."""


def test_the_published_example_comes_out():
    mttf = DAY / 3
    assert young(15, mttf) == pytest.approx(929.5, abs=0.05)
    assert wasted_share(young(15, mttf), 15, mttf) == pytest.approx(0.0323, abs=5e-5)
    assert wasted_share(300, 15, mttf) == pytest.approx(0.0552, abs=5e-5)
    assert wasted_share(1800, 15, mttf) == pytest.approx(0.0396, abs=5e-5)


def best(function, low=1e-3, high=1e7):
    """Where a function with one maximum has it: golden section on a logarithmic scale."""
    golden, a, b = (5**0.5 - 1) / 2, math.log(low), math.log(high)
    for _ in range(200):
        c, d = b - golden * (b - a), a + golden * (b - a)
        if function(math.exp(c)) > function(math.exp(d)):
            b = d
        else:
            a = c
    return math.exp((a + b) / 2)


@pytest.mark.parametrize(("cost", "restart", "mttf"), CASES)
def test_each_formula_is_where_its_model_has_its_maximum(cost, restart, mttf):
    assert exact(cost, mttf) == pytest.approx(best(lambda tau: efficiency(tau, cost, mttf, restart)), rel=1e-5)
    assert young(cost, mttf) == pytest.approx(best(lambda tau: -wasted_share(tau, cost, mttf)), rel=1e-5)
    available = best(lambda tau: tau / (tau + cost) * mttf / (mttf + restart + (tau + cost) / 2))
    assert availability_optimal(cost, mttf, restart) == pytest.approx(available, rel=1e-5)


@pytest.mark.parametrize(("cost", "restart", "mttf"), CASES)
def test_the_approximations_agree_with_the_exact_answer_as_well_as_they_should(cost, restart, mttf):
    assert daly(cost, mttf) == pytest.approx(exact(cost, mttf), rel=3e-3)
    assert efficiency(daly(cost, mttf), cost, mttf, restart) == pytest.approx(efficiency(exact(cost, mttf), cost, mttf, restart), rel=1e-5)
    assert exact(cost, mttf) < young(cost, mttf)


def test_in_the_limits_they_become_one_another():
    for ratio in (1e-3, 1e-6, 1e-9, 1e-12, 1e-15):
        assert exact(ratio, 1.0) == pytest.approx(young(ratio, 1.0), rel=ratio**0.5)
        assert availability_optimal(ratio, 1.0, 0.0) == pytest.approx(young(ratio, 1.0), rel=ratio**0.5)
    for cost in (3.0, 29.0, 31.0, 1e9):
        assert exact(cost, 1.0) == pytest.approx(1.0, rel=0.02)
        assert daly(cost, 1.0) == 1.0
    assert exact(0.0, 5.0) == young(0.0, 5.0) == 0.0


def test_the_exact_root_is_one_over_the_whole_range():
    for power in range(-12, 2):
        for digit in (1, 2, 5):
            ratio = digit * 10.0**power
            u = exact(ratio, 1.0)
            if 1e-4 < u < 0.999_999:
                assert math.log1p(-u) + u == pytest.approx(-ratio, rel=1e-6)


def simulated(tau, cost, mttf, restart, *, durable=None, failures=20_000, seed=1):
    """Share of the time that is training which counts, by playing a job through that many failures."""
    draw, durable = random.Random(seed).expovariate, cost if durable is None else durable
    time = kept = 0.0
    for _ in range(failures):
        left = draw(1 / mttf)
        time += left
        rounds = int(left // (tau + cost))
        within = left - rounds * (tau + cost)
        late = rounds and within < durable - cost  # the newest save was not durable yet
        kept += max(0, rounds - (1 if late else 0)) * tau
        while True:  # a restart may fail, too
            again = draw(1 / mttf)
            if again >= restart:
                time += restart
                break
            time += again
    return kept / time


@pytest.mark.parametrize(("cost", "restart", "mttf"), CASES)
def test_the_efficiency_is_what_a_simulation_finds(cost, restart, mttf):
    tau = exact(cost, mttf)
    assert efficiency(tau, cost, mttf, restart) == pytest.approx(simulated(tau, cost, mttf, restart), abs=0.006)


def test_saving_at_the_best_interval_beats_saving_at_half_or_twice_of_it():
    cost, restart, mttf = 60, 600, 3 * HOUR
    tau = exact(cost, mttf)
    at_best = simulated(tau, cost, mttf, restart)
    for factor in (0.25, 0.5, 2, 4):
        assert simulated(factor * tau, cost, mttf, restart) < at_best - 0.003


def test_asynchronous_saves_are_best_where_the_rule_says():
    mttf, restart = 3 * HOUR, 600
    for blocking, durable in ((1, 60), (1, 300), (0.1, 60)):
        tau = asynchronous(blocking, durable, mttf)
        at_rule = simulated(tau, blocking, mttf, restart, durable=durable)
        others = [simulated(tau * factor, blocking, mttf, restart, durable=durable) for factor in (1.5, 3, 8)]
        assert at_rule > max(others) - 0.002
        first_order = 1 - wasted_share(tau, blocking, mttf, restart_s=restart, durable_s=durable)
        assert at_rule == pytest.approx(first_order, abs=0.012)
    assert asynchronous(0.1, 60, mttf) == 60
    assert asynchronous(1, 60, mttf) == young(1, mttf)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: young(-1, 10),
        lambda: daly(1, 0),
        lambda: exact(math.nan, 10),
        lambda: exact(1, math.inf),
        lambda: efficiency(1, 1, -5),
        lambda: wasted_share(0, 1, 10),
        lambda: availability_optimal(1, 10, -1),
        lambda: asynchronous(1, -1, 10),
    ],
)
def test_nonsense_is_refused(wrong):
    with pytest.raises(UsageError):
        wrong()


def test_a_hopeless_job_has_no_efficiency_and_no_error():
    assert efficiency(1e6, 1, 1.0) == 0.0
    assert efficiency(0, 1, 1.0) == 0.0

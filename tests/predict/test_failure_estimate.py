"""How often a job is expected to fail: what is assumed before anything is known, and how experience takes over."""

import math
import random

import pytest

from ettrain.predict.failures import ASSUMED_MTTF_S, Experience, expect
from ettrain.predict.interval import wasted_share, young

HOUR = 3600.0


def test_without_experience_it_is_assumed_and_said():
    told = expect(Experience(failures=0, exposure_s=0.0))
    assert told.seconds == pytest.approx(ASSUMED_MTTF_S, rel=1e-3)
    assert told.assumed
    assert told.why == "assumed: no failure was seen yet"


def test_a_large_job_is_assumed_to_fail_more_often_than_once_a_day():
    assert expect(Experience(failures=0, exposure_s=0.0, devices=1024)).seconds == pytest.approx(ASSUMED_MTTF_S, rel=1e-3)
    assert expect(Experience(failures=0, exposure_s=0.0, devices=16_384)).seconds == pytest.approx(86_400 / (16_384 / 8 * 6.5e-3), rel=1e-3)


def test_time_without_a_failure_makes_it_longer_and_a_failure_shorter():
    before = expect(Experience(failures=0, exposure_s=0.0)).seconds
    calm = expect(Experience(failures=0, exposure_s=100 * HOUR)).seconds
    failed = expect(Experience(failures=1, exposure_s=100 * HOUR)).seconds
    assert failed < calm / 1.5
    assert before < calm
    assert all(
        expect(Experience(failures=n, exposure_s=HOUR)).seconds > expect(Experience(failures=n + 1, exposure_s=HOUR)).seconds
        for n in range(20)
    )


def test_a_few_failures_in_a_row_count_at_once():
    assert expect(Experience(failures=1, exposure_s=HOUR / 6)).seconds < 4 * HOUR
    assert HOUR / 6 < expect(Experience(failures=5, exposure_s=5 * HOUR / 6)).seconds < HOUR / 3


@pytest.mark.parametrize(("failures", "exposure_s"), [(0, 1e-9), (0, 1e12), (10**6, 1.0), (10**6, 1e12), (1, 0.0)])
def test_extremes_stay_numbers(failures, exposure_s):
    assert 1e-9 < expect(Experience(failures=failures, exposure_s=exposure_s)).seconds < 1e14


def test_much_experience_is_its_own_mean():
    told = expect(Experience(failures=50, exposure_s=50 * 2 * HOUR))
    assert told.seconds == pytest.approx(2 * HOUR, rel=0.05)
    assert told.why == "50 in 100 h of this job"


def regret(estimate, truth, cost=1.0):
    """What saving by that estimate wastes beyond saving by the truth."""
    return wasted_share(young(cost, estimate), cost, truth) - wasted_share(young(cost, truth), cost, truth)


def test_to_save_by_the_estimate_wastes_less_than_by_the_plain_mean():
    draw = random.Random(3)
    ours = plain = 0.0
    for _ in range(1000):
        truth = 24 * HOUR * math.exp(draw.gauss(0.5, 1.2))
        failures, exposure = 0, draw.choice((1, 5, 25, 125)) * HOUR
        t = draw.expovariate(1 / truth)
        while t < exposure:
            failures += 1
            t += draw.expovariate(1 / truth)
        ours += regret(expect(Experience(failures=failures, exposure_s=exposure)).seconds, truth)
        plain += regret(exposure / max(0.5, failures), truth)
    assert ours < plain


def test_the_fleet_tells_until_the_job_knows_better():
    own = Experience(failures=0, exposure_s=0.0)
    bad = [Experience(failures=10, exposure_s=10 * HOUR)] * 20
    begin = expect(own, bad)
    assert HOUR < begin.seconds < 2 * HOUR  # as after four failures in four hours of its own
    assert begin.fleet_failures == 200
    assert begin.why == "0 in 0 s of this job, 200 in 20 other jobs"
    assert not begin.assumed
    later = expect(Experience(failures=0, exposure_s=1000 * HOUR), bad)
    assert later.seconds > 200 * HOUR


def test_a_fleet_of_larger_jobs_counts_by_its_devices():
    own = Experience(failures=0, exposure_s=0.0, devices=8)
    large = expect(own, [Experience(failures=4, exposure_s=8 * HOUR, devices=16)]).seconds
    assert large == expect(own, [Experience(failures=4, exposure_s=16 * HOUR, devices=8)]).seconds


def test_a_job_without_time_counts_for_nothing():
    own = Experience(failures=0, exposure_s=0.0)
    assert expect(own, [Experience(failures=1, exposure_s=0.0)]) == expect(own)

"""When a checkpoint is due: what may be asked for, when it says yes, and how `auto` follows what saves cost and how often jobs fail."""

import itertools

import pytest

from ettrain.boost.checkpoint.interval import FIRST_S, SHORTEST_S, Interval
from ettrain.errors import UsageError
from ettrain.predict.failures import Experience, expect
from ettrain.predict.interval import young

S = 1_000_000_000


def played(interval, steps, *, step_s=1.0, blocking_s=0.1, durable_s=2.0, start=0):
    """Steps done at which a save was due, when each save succeeds."""
    now, saved, pending = 0, [], None
    interval.begin(start, now)
    for step in range(start + 1, start + steps + 1):
        now += int(step_s * S)
        if pending and now >= pending[1]:
            interval.saved(pending[0], int(blocking_s * S), int(durable_s * S), pending[1])
            pending = None
        if interval.due(step, now):
            saved.append(step)
            interval.began(step, now)
            pending = step, now + int(durable_s * S)
            now += int(blocking_s * S)
    return saved


@pytest.mark.parametrize("every", [0, -5, 1.5, True, "", "often", "100", "0s", "-3s", "5 parsecs", "nan s", float("inf"), "1e3s", b"auto"])
def test_nonsense_is_refused_with_what_can_be_said(every):
    with pytest.raises(UsageError, match=r'say "auto", a number of steps'):
        Interval.parse(every)


@pytest.mark.parametrize(("every", "seconds"), [("300s", 300), ("5min", 300), (" 1.5 h ", 5400), ("90 seconds", 90), ("1H", 3600)])
def test_times_are_read_with_their_unit(every, seconds):
    assert Interval.parse(every).seconds == seconds


def test_by_steps_it_is_each_multiple():
    assert played(Interval.parse(10), 45) == [10, 20, 30, 40]
    assert played(Interval.parse(10), 45, start=17) == [20, 30, 40, 50, 60]
    assert played(Interval.parse(1), 5, durable_s=0.1) == [1, 2, 3, 4, 5]


def test_a_multiple_that_passed_during_a_save_comes_right_after_it():
    assert played(Interval.parse(10), 60, durable_s=13.5) == [10, 24, 38, 52]  # 20 passed while 10 was being written, and so on


def test_a_save_in_between_moves_no_multiple():
    interval = Interval.parse(10)
    interval.begin(0, 0)
    interval.began(7, 7 * S)
    interval.saved(7, 0, 1, 8 * S)
    assert [
        step
        for step in range(8, 35)
        if interval.due(step, step * S) and (interval.began(step, step * S), interval.saved(step, 0, 1, step * S))
    ] == [10, 20, 30]


def test_by_time_it_is_the_step_nearest_to_it():
    assert played(Interval.parse("30s"), 100, step_s=1.0, blocking_s=0.0) == [30, 60, 90]
    assert played(Interval.parse("30s"), 20, step_s=7.0, blocking_s=0.0) == [4, 8, 12, 16, 20]  # 28 s is nearer than 35 s
    assert played(Interval.parse("30s"), 20, step_s=9.0, blocking_s=0.0) == [3, 6, 9, 12, 15, 18]
    assert played(Interval.parse("30s"), 4, step_s=200.0, blocking_s=0.0) == [1, 2, 3, 4]


def test_none_is_due_while_one_is_under_way_and_none_twice():
    interval = Interval.parse(1)
    interval.begin(0, 0)
    assert interval.due(1, S)
    interval.began(1, S)
    assert not interval.due(2, 2 * S)
    interval.saved(1, 0, S, 2 * S)
    assert interval.due(2, 2 * S)
    interval.began(2, 2 * S)
    interval.saved(2, 0, S, 3 * S)
    assert not interval.due(2, 3 * S)


def test_never_is_never():
    assert played(Interval.parse(None), 1000) == []


def test_nobody_said_begin():
    interval = Interval.parse(1)
    assert interval.due(1, 5)
    timed = Interval.parse("10s")
    assert not timed.due(7, 100 * S)
    assert timed.due(8, 111 * S)


def test_auto_saves_first_after_a_minute_and_then_as_often_as_pays():
    interval = Interval.parse("auto")
    saved = played(interval, 4000, blocking_s=0.1, durable_s=2.0)
    assert saved[0] == FIRST_S
    gaps = {after - before for before, after in itertools.pairwise(saved[1:])}
    best = young(0.1, 86_400)
    assert gaps <= {int(best), int(best) + 1, int(best) - 1}
    assert interval.seconds == pytest.approx(best, rel=1e-3)
    assert "assumed: no failure was seen yet" in interval.why


def test_auto_follows_the_cost_of_a_save_and_the_failures():
    interval = Interval.parse("auto")
    interval.begin(0, 0)
    seen = []
    for blocking_s, mttf in ((0.1, None), (10.0, None), (10.0, expect(Experience(failures=20, exposure_s=20 * 3600)))):
        if mttf is not None:
            interval.expect(mttf)
        for _ in range(5):
            interval.began(1, 0)
            interval.saved(1, int(blocking_s * S), S, S)
        seen.append(interval.seconds)
    assert seen[1] == pytest.approx(10 * seen[0], rel=0.01)
    assert seen[2] < seen[1] / 3
    assert "20 in 20 h of this job" in interval.why


def test_one_odd_save_does_not_count():
    interval = Interval.parse("auto")
    interval.begin(0, 0)
    for blocking_s in (5.0, 0.1, 0.1, 0.1):  # the first one warms up
        interval.saved(1, int(blocking_s * S), S, S)
    assert interval.blocking_s == 0.1


def test_auto_is_no_shorter_than_a_save_takes_and_than_makes_sense():
    interval = Interval.parse("auto")
    interval.begin(0, 0)
    interval.saved(1, 1000, 240 * S, 240 * S)
    assert interval.seconds == 240
    assert interval.why.startswith("every 240 s: a save takes so long;")
    quick = Interval.parse("auto")
    quick.saved(1, 1000, 1000, S)
    assert quick.seconds == SHORTEST_S


def test_what_an_earlier_attempt_knew_is_used_from_the_start_and_then_forgotten():
    interval = Interval.parse("auto")
    interval.learned(0.4, 3.0)
    assert interval.seconds == pytest.approx(young(0.4, 86_400), rel=1e-3)
    interval.learned(-1.0, 3.0)
    interval.learned(float("nan"), 3.0)
    for _ in range(5):
        interval.saved(1, S // 10, S, S)
    assert interval.seconds == pytest.approx(young(0.1, 86_400), rel=1e-3)


def test_a_failing_job_saves_early_from_the_start():
    interval = Interval.parse("auto")
    interval.expect(expect(Experience(failures=30, exposure_s=30 * 120)))
    assert SHORTEST_S <= interval.seconds < 20


def test_after_a_failed_save_the_next_is_tried_within_a_minute():
    interval = Interval.parse("1h")
    interval.begin(0, 0)
    assert interval.due(1, 3600 * S)
    interval.began(1, 3600 * S)
    interval.failed(3700 * S)
    assert next(second for second in range(3701, 4000) if interval.due(second, second * S)) == 3760
    short = Interval.parse("10s")
    short.begin(0, 0)
    short.began(1, 10 * S)
    short.failed(15 * S)
    assert not short.due(2, 16 * S)
    assert short.due(3, 20 * S)


def test_what_comes_next_is_told():
    interval = Interval.parse(100)
    assert interval.next_step == 100
    interval.begin(0, 0)
    interval.began(250, S)
    assert (interval.next_step, interval.next_ns) == (300, None)
    timed = Interval.parse("60s")
    assert timed.next_ns is None
    timed.begin(0, 5 * S)
    assert (timed.next_step, timed.next_ns) == (None, 65 * S)
    assert [Interval.parse(every).why for every in (None, 1000, "60s")] == [
        "when the program asks",
        "every 1,000 steps, as asked",
        "every 60 s, as asked",
    ]
    assert Interval.parse("auto").why == "first after 60 s, then as often as pays"

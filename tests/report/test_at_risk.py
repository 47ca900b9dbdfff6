"""`ett watch` on work at risk: since which checkpoint, how long, how many steps, and when it ends."""

import pytest

from ettrain.account.ledger import account
from ettrain.jobreader import JobReader
from ettrain.report.atrisk import at_risk
from ettrain.report.live import live_dict, live_line, render_live
from ettrain.testing import FakeJob

S = 1_000_000_000


@pytest.fixture
def job(tmp_path):
    return FakeJob(tmp_path)


def look(job, attempt):
    job.now = attempt.ranks[0].t
    job.go_on()
    history = JobReader(job.paths).read(job.wall_ns)
    found = account(history)
    job.close()
    return found, history


def test_before_the_first_checkpoint_all_is_at_risk(job):
    attempt = job.attempt()
    attempt.steps(4, 2)
    told = look(job, attempt)
    risk = at_risk(*told)
    assert (risk.saved, risk.since_step, risk.steps, risk.next_ns, risk.next_step) == (False, 0, 4, None, None)
    assert risk.ns == told[0].ledger.at_risk_ns > 0
    assert "at risk 8.0 s (no checkpoint saved yet)" in live_line(*told)


def test_since_a_checkpoint_it_is_the_steps_after_it(job):
    attempt = job.attempt()
    attempt.steps(4, 2)
    attempt.save(1)
    attempt.steps(3, 3)
    told = look(job, attempt)
    assert "at risk 9.0 s, 3 steps since step 4" in live_line(*told)
    screen = render_live(*told, width=79, height=20, colour=False)
    assert "  at risk 9.0 s, 3 steps since step 4\n" in screen
    one = live_dict(*told)["at_risk"]
    assert (one["s"], one["steps"], one["saved"], one["since_step"], one["next_save_s"], one["why"]) == (9.0, 3, True, 4, None, None)
    assert one["since"].endswith("Z")


def test_an_asynchronous_save_protects_nothing_until_it_is_durable(job):
    attempt = job.attempt()
    attempt.steps(4, 2)
    attempt.save(1)
    attempt.steps(2, 1)
    attempt.save(0.1, commit_after=100)
    attempt.steps(3, 3)
    risk = at_risk(*look(job, attempt))
    assert (risk.since_step, risk.steps) == (4, 5)


def test_after_a_resume_it_counts_from_the_step_resumed_at(job):
    first = job.attempt()
    first.steps(4, 2)
    saved = first.save(1)
    first.steps(2, 2)
    first.kill()
    first.end(1)
    again = job.attempt()
    again.load(saved, 1)
    again.steps(3, 1)
    risk = at_risk(*look(job, again))
    assert (risk.saved, risk.since_step, risk.steps, risk.ns) == (True, 4, 3, 3 * S)


def test_steps_that_cannot_be_counted_are_not_told(job):
    attempt = job.attempt()
    attempt.steps(4, 2)
    old = attempt.save(1)
    attempt.steps(4, 2)
    attempt.save(1)
    attempt.load(old, 1)
    attempt.steps(2, 1)
    told = look(job, attempt)
    assert at_risk(*told).steps is None
    assert "since step 8" in live_line(*told)
    assert "steps since" not in live_line(*told)


def test_the_next_save_is_told_by_time(job):
    attempt = job.attempt()
    attempt.ranks[0].write({"k": "interval", "every": "auto", "seconds": 30.0, "steps": None, "why": "every 30 s: because"})
    attempt.steps(4, 2)
    attempt.save(1)
    attempt.steps(3, 3)
    told = look(job, attempt)
    risk = at_risk(*told)
    assert risk.next_ns == 20 * S
    assert "next save in 20.0 s" in live_line(*told)
    assert (live_dict(*told)["at_risk"]["next_save_s"], live_dict(*told)["at_risk"]["why"]) == (20.0, "every 30 s: because")


def test_an_overdue_save_is_due_now(job):
    attempt = job.attempt()
    attempt.ranks[0].write({"k": "interval", "every": "time", "seconds": 2.0})
    attempt.steps(9, 2)
    told = look(job, attempt)
    assert "next save now" in live_line(*told)


def test_the_next_save_is_told_by_steps(job):
    attempt = job.attempt()
    attempt.ranks[0].write({"k": "interval", "every": "steps", "seconds": None, "steps": 5})
    attempt.steps(7, 1)
    told = look(job, attempt)
    assert at_risk(*told).next_step == 10
    assert "next save at step 10" in live_line(*told)


def test_a_malformed_record_is_counted_and_no_error(job):
    attempt = job.attempt()
    attempt.ranks[0].write({"k": "interval", "every": "auto", "seconds": "often", "steps": -4})
    attempt.ranks[0].write({"k": "interval"})
    attempt.ranks[0].write({"k": "stop"})
    attempt.steps(2, 1)
    risk = at_risk(*look(job, attempt))
    assert (risk.next_ns, risk.next_step) == (None, None)


def test_a_job_that_does_not_train_now_has_nothing_at_risk(job):
    attempt = job.attempt()
    attempt.steps(4, 2)
    attempt.kill()
    attempt.end(1)
    job.go_on()
    history = JobReader(job.paths).read(job.wall_ns)
    assert at_risk(account(history), history) is None
    assert live_dict(account(history), history)["at_risk"] is None
    job.close()

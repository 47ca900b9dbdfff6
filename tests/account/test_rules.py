"""The rules of docs/accounting.md, one job each, told by the recorder's own files."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from ettrain.account.history import AttemptHistory, JobHistory, Label, RankHistory, Span
from ettrain.account.ledger import Ledger, account, number_of
from ettrain.jobreader import JobReader
from ettrain.testing import FakeJob

S = 1_000_000_000


def ledger_of(job: FakeJob) -> Ledger:
    found = account(JobReader(job.paths).read(job.wall_ns)).ledger
    job.close()
    return found


def seconds(ledger: Ledger) -> dict[str, float]:
    """Wall seconds per leaf, by the path without its first word where that is clear."""
    total = Counter({leaf.path.removeprefix("idle/"): leaf.wall_ns / S for leaf in ledger.leaves if leaf.wall_ns})
    total["effective"] = ledger.effective_ns / S
    return dict(+total)


def finished(job: FakeJob, attempt) -> Ledger:
    attempt.exit()
    attempt.end()
    job.bye()
    return ledger_of(job)


@pytest.fixture
def job(tmp_path):
    return FakeJob(tmp_path)


# ---- one rank


def test_the_usual_part_of_a_step_that_stalled_stays_training(job):
    attempt = job.attempt()
    attempt.steps(8, 2)
    attempt.steps(1, 50)
    attempt.steps(3, 2)
    assert seconds(finished(job, attempt)) == {"effective": 24, "steady/stall": 48}


def test_a_step_that_is_slow_but_no_stall_is_training(job):
    attempt = job.attempt()
    attempt.steps(8, 2)
    attempt.steps(1, 20)
    assert seconds(finished(job, attempt)) == {"effective": 36}


def test_an_evaluation_inside_a_step_does_not_make_it_a_stall(job):
    attempt = job.attempt()
    attempt.steps(8, 2)
    attempt.stage("evaluation", 100)
    attempt.steps(8, 2)
    assert seconds(finished(job, attempt)) == {"effective": 32, "steady/evaluation": 100}


def test_an_evaluation_inside_a_frame_around_the_loop_does_not_either(job):
    attempt = job.attempt()
    (rank,) = attempt.ranks
    rank.enter("epoch", user=True)
    rank.steps(8, 2)
    rank.stage("evaluation", 100)
    rank.steps(8, 2)
    rank.leave()
    assert seconds(finished(job, attempt)) == {"effective": 32, "steady/evaluation": 100}


def test_short_waits_for_data_are_taken_out_of_training_exactly(job):
    attempt = job.attempt()
    attempt.steps(10, 2, wait=0.125)
    found = seconds(finished(job, attempt))
    assert found["steady/data_wait"] == 9 * 0.125
    assert found["effective"] == 20 - 9 * 0.125


def test_a_marked_stage_beats_found_ones_and_the_inner_the_outer(job):
    attempt = job.attempt()
    (rank,) = attempt.ranks
    rank.enter("imports")
    rank.enter("alpha", user=True)
    rank.stage("device_init", 3)
    rank.stage("beta", 4, user=True)
    rank.leave()
    rank.pause(1)
    rank.stage("device_init", 2)
    rank.leave()
    attempt.steps(2, 2)
    assert seconds(finished(job, attempt)) == {"start/alpha": 3, "start/beta": 4, "start/imports": 1, "start/device_init": 2, "effective": 4}


def test_work_beside_the_main_thread_takes_nothing_away(job):
    attempt = job.attempt()
    attempt.ranks[0].beside("checkpoint_save", 2, 5)
    attempt.steps(5, 2)
    assert seconds(finished(job, attempt)) == {"effective": 10}


def test_a_stage_that_was_open_when_the_process_was_killed_lasts_until_then(job):
    attempt = job.attempt()
    attempt.steps(3, 2)
    attempt.ranks[0].enter("checkpoint_save")
    attempt.ranks[0].pause(7)
    attempt.kill()
    attempt.end(-9)
    job.bye()
    assert seconds(ledger_of(job)) == {"failure/unsaved": 6, "steady/checkpoint_blocking": 7}


def test_after_the_last_step_nothing_is_training(job):
    attempt = job.attempt()
    attempt.steps(3, 2)
    attempt.pause(4)
    attempt.stage("checkpoint_save", 3)
    attempt.stage("evaluation", 2)
    attempt.stage("publish", 5)
    attempt.exit(teardown=1)
    attempt.end()
    job.bye()
    ledger = ledger_of(job)
    expected = {"effective": 6, "untracked": 4, "shutdown/final_checkpoint": 3, "steady/evaluation": 2, "shutdown/publish": 5, "shutdown/teardown": 1}
    assert seconds(ledger) == expected
    assert ledger.time_to_shut_down_ns == 15 * S
    assert ledger.checkpoint_blocking_ns == 3 * S


def test_a_program_that_leaves_by_os_exit_shuts_down_all_the_same(job):
    attempt = job.attempt()
    attempt.steps(3, 2)
    attempt.pause(4)
    attempt.kill(code=0)
    attempt.end(0, after=1)
    job.bye()
    ledger = ledger_of(job)
    assert seconds(ledger) == {"effective": 6, "untracked": 4, "shutdown/teardown": 1}
    assert ledger.status == "finished"


def test_a_process_that_never_trained_tears_down_at_its_end(job):
    attempt = job.attempt()
    attempt.stage("imports", 3)
    attempt.pause(2)
    attempt.exit(teardown=4)
    attempt.end()
    job.bye()
    ledger = ledger_of(job)
    assert seconds(ledger) == {"start/imports": 3, "start/setup": 2, "shutdown/teardown": 4}
    assert not ledger.trained


def test_steps_counted_by_a_worse_source_were_none(job):
    attempt = job.attempt()
    (rank,) = attempt.ranks
    attempt.steps(1, 3)
    rank.write({"k": "recount"})
    rank.counted, rank._pow2, rank._due, rank._window = 0, 1, 0, (-1, 0, 0)
    attempt.stage("compile", 5)
    attempt.steps(6, 2)
    ledger = finished(job, attempt)
    assert ledger.steps == 6
    assert seconds(ledger) == {"effective": 15, "start/compile": 5}
    assert ledger.time_to_start_ns == 5 * S


# ---- all ranks


def test_the_job_trains_only_while_every_rank_does(job):
    attempt = job.attempt(ranks=2)
    attempt.ranks[0].stage("imports", 3)
    attempt.ranks[1].stage("device_init", 5)
    attempt.steps(1, 2)
    attempt.sync()
    attempt.steps(1, 2)
    attempt.ranks[0].stage("evaluation", 4)
    attempt.ranks[1].stage("data_wait", 6)
    ledger = finished(job, attempt)
    assert ledger.slices[0][2] == "idle/start/imports"
    assert seconds(ledger)["start/imports"] == 3
    assert seconds(ledger)["start/device_init"] == 2
    assert seconds(ledger)["effective"] == 4
    assert ledger.effective_device_ns == 6 * S + 4 * S, "rank 0 was faster"


def test_a_rank_that_left_no_journal_holds_a_job_that_never_trained_at_launch(job):
    attempt = job.attempt(ranks=1, world=2)
    attempt.stage("imports", 3)
    attempt.kill()
    attempt.end(1, after=2)
    job.bye()
    ledger = ledger_of(job)
    assert seconds(ledger) == {"start/launch": 3, "failure/detect": 2}
    assert ledger.device_wall_ns == 2 * ledger.wall_ns


def test_a_helper_that_never_trains_does_not_hold_the_others_back(job):
    attempt = job.attempt(ranks=3)
    for rank in attempt.ranks[:2]:
        rank.stage("imports", 2)
        rank.steps(5, 2)
    attempt.ranks[2].stage("imports", 3)
    attempt.sync()
    ledger = finished(job, attempt)
    assert seconds(ledger) == {"start/imports": 2, "effective": 10}
    assert {leaf.path: leaf.device_ns / S for leaf in ledger.leaves}["idle/start/setup"] == 9


def test_a_rank_that_broke_before_it_trained_is_no_helper(job):
    attempt = job.attempt(ranks=2)
    attempt.ranks[0].steps(5, 2)
    attempt.ranks[1].stage("imports", 10)
    attempt.kill(1)
    attempt.end(1)
    job.bye()
    assert seconds(ledger_of(job)) == {"start/imports": 10}


# ---- when it stopped


def test_silence_longer_than_a_stall_is_a_hang_from_the_last_progress(job):
    attempt = job.attempt(ranks=2)
    attempt.steps(8, 2)
    attempt.save(1)
    attempt.pause(100)
    attempt.kill(0)
    attempt.end(-9, reason="hang")
    job.bye()
    ledger = ledger_of(job)
    assert seconds(ledger) == {"effective": 16, "steady/checkpoint_blocking": 1, "failure/detect": 100}
    assert ledger.incidents[0].diagnosis.cls == "hang"


def test_a_hang_that_ends_in_an_exception_is_what_the_exception_says(job):
    attempt = job.attempt()
    attempt.steps(8, 2)
    attempt.pause(600)
    attempt.ranks[0].throw("DistBackendError", "Watchdog caught collective operation timeout")
    attempt.end(1)
    job.bye()
    ledger = ledger_of(job)
    assert ledger.incidents[0].diagnosis.cls == "collective_timeout"
    assert ledger.incidents[0].detect_ns == 600 * S


def test_a_long_evaluation_is_progress_and_no_hang(job):
    attempt = job.attempt()
    attempt.steps(8, 2)
    attempt.stage("evaluation", 500)
    attempt.pause(3)
    attempt.kill()
    attempt.end(-9)
    job.bye()
    assert seconds(ledger_of(job)) == {"failure/unsaved": 19, "steady/evaluation": 500}


def test_the_rank_that_stopped_first_is_the_culprit_also_at_the_very_end(job):
    attempt = job.attempt(ranks=2)
    attempt.steps(4, 2)
    attempt.kill(1, code=-11)
    attempt.end(1)
    job.bye()
    incident = ledger_of(job).incidents[0]
    assert (incident.diagnosis.cls, incident.diagnosis.rank) == ("segfault", 1)


def test_a_running_job_that_is_silent_is_in_detect(job):
    attempt = job.attempt()
    attempt.steps(8, 2)
    job.now = attempt.ranks[0].t
    job.wait(300)
    job.go_on()
    ledger = ledger_of(job)
    assert ledger.status == "running"
    assert seconds(ledger) == {"effective": 16, "failure/detect": 300}


# ---- what was lost


def test_a_crash_in_the_first_step_trained_nothing(job):
    attempt = job.attempt()
    attempt.stage("imports", 3)
    attempt.ranks[0].begin_step()
    attempt.pause(5)
    attempt.kill()
    attempt.end(1)
    again = job.attempt()
    again.steps(3, 2)
    ledger = finished(job, again)
    assert seconds(ledger) == {"start/imports": 3, "failure/unsaved": 5, "effective": 6}
    assert ledger.incidents[0].unsaved_ns == 5 * S


def test_an_asynchronous_save_protects_nothing_before_it_has_committed(tmp_path):
    for commit_after, kept in ((1, 8), (None, 8), (30, 4)):
        job = FakeJob(tmp_path, f"after-{commit_after}")
        attempt = job.attempt()
        attempt.steps(2, 2)
        attempt.save(1)
        attempt.steps(2, 2)
        attempt.save(1, commit_after=commit_after)
        attempt.steps(2, 2)
        attempt.kill()
        attempt.end(1)
        job.bye()
        assert seconds(ledger_of(job))["effective"] == kept


def test_going_back_to_an_abandoned_branch_brings_its_work_back(job):
    first = job.attempt()
    first.steps(2, 2)
    early = first.save(1)
    first.steps(5, 2)
    late = first.save(1)
    first.kill()
    first.end(1)
    second = job.attempt()
    second.load(early, 1)
    second.steps(3, 2)
    second.kill()
    second.end(1)
    third = job.attempt()
    third.load(late, 1)
    third.steps(4, 2)
    ledger = finished(job, third)
    assert seconds(ledger)["effective"] == 4 + 10 + 8
    assert seconds(ledger)["failure/unsaved"] == 6
    assert [incident.unsaved_ns // S for incident in ledger.incidents] == [0, 6]
    assert ledger.steps == 11


def test_a_checkpoint_of_an_attempt_that_never_trained_holds_what_it_had_loaded(job):
    first = job.attempt()
    first.steps(4, 2)
    saved = first.save(1)
    first.kill()
    first.end(1)
    second = job.attempt()
    second.load(saved, 1)
    copied = second.save(1)
    second.kill()
    second.end(1)
    third = job.attempt()
    third.load(copied, 1)
    third.steps(4, 2)
    ledger = finished(job, third)
    assert seconds(ledger)["effective"] == 16
    assert ledger.unsaved_ns == 0
    assert ledger.attempts[2].first_step == 4


def test_a_fresh_checkpoint_of_an_attempt_that_never_trained_holds_nothing(job):
    first = job.attempt()
    first.steps(4, 2)
    first.kill()
    first.end(1)
    second = job.attempt()
    empty = second.save(1)
    second.kill()
    second.end(1)
    third = job.attempt()
    third.load(empty, 1)
    third.steps(4, 2)
    assert seconds(finished(job, third))["failure/unsaved"] == 8


def test_a_roll_back_inside_is_unsaved_and_no_failure(job):
    attempt = job.attempt()
    attempt.steps(4, 2)
    saved = attempt.save(1)
    attempt.steps(3, 2)
    attempt.load(saved, 1)
    attempt.steps(5, 2)
    ledger = finished(job, attempt)
    assert seconds(ledger) == {"effective": 18, "failure/unsaved": 6, "steady/checkpoint_blocking": 1, "steady/checkpoint_load": 1}
    assert ledger.incidents == ()
    assert ledger.attempts[0].last_step == 8
    assert ledger.steps == 9


def test_a_program_that_numbers_its_steps_anew_in_each_epoch_is_not_rolled_back(job):
    attempt = job.attempt()
    for _ in range(3):
        attempt.said(0)
        attempt.steps(4, 2)
    ledger = finished(job, attempt)
    assert seconds(ledger) == {"effective": 24}
    assert ledger.steps == 12


def test_a_program_that_counts_further_than_was_recorded_loses_nothing(job):
    first = job.attempt(ranks=2)
    first.ranks[0].steps(5, 2)
    first.ranks[1].steps(4, 2)
    first.kill()
    first.end(1)
    second = job.attempt()
    second.said(900)
    second.steps(3, 2)
    ledger = finished(job, second)
    assert ledger.attempts[1].resume.source == "said"
    assert ledger.unsaved_ns == 0
    assert ledger.attempts[1].first_step == 900


def test_a_step_that_the_program_names_is_found_between_progress_records(job):
    first = job.attempt()
    first.steps(60, 0.25)
    first.kill()
    first.end(1)
    second = job.attempt()
    second.said(27)
    second.steps(3, 2)
    ledger = finished(job, second)
    assert ledger.attempts[1].resume.snapshot - ledger.start == pytest.approx(27 * 0.25 * S, abs=1)
    assert 0 < ledger.incidents[0].unsaved_error_ns < 2 * S


def test_a_sharded_checkpoint_counts_once_and_from_its_earliest_part(job):
    attempt = job.attempt(ranks=2)
    attempt.steps(2, 2)
    attempt.ranks[0].save(1)
    attempt.ranks[1].pause(0.5)
    attempt.ranks[1].save(1)
    attempt.sync()
    attempt.steps(2, 2)
    attempt.kill()
    attempt.end(1)
    job.bye()
    ledger = ledger_of(job)
    assert ledger.saves == 1
    assert ledger.effective_ns == 4 * S


# ---- running


def test_a_job_that_waits_for_its_restart_loses_time_until_now(job):
    attempt = job.attempt()
    attempt.steps(4, 2)
    attempt.save(1)
    attempt.steps(4, 2)
    attempt.kill()
    attempt.end(1)
    job.wait(60)
    job.go_on()
    ledger = ledger_of(job)
    assert ledger.status == "running"
    assert seconds(ledger) == {"effective": 8, "steady/checkpoint_blocking": 1, "failure/unsaved": 8, "failure/reschedule": 60}
    assert ledger.device_wall_ns == ledger.wall_ns == 77 * S
    assert ledger.incidents[0].time_to_recover_ns == 60 * S


def test_what_a_running_restart_has_lost_is_lost_at_once(job):
    attempt = job.attempt()
    attempt.steps(4, 2)
    saved = attempt.save(1)
    attempt.steps(4, 2)
    attempt.kill()
    attempt.end(1)
    again = job.attempt()
    again.load(saved, 5)
    job.now = again.ranks[0].t
    job.go_on()
    ledger = ledger_of(job)
    assert seconds(ledger)["failure/unsaved"] == 8
    assert ledger.at_risk_ns == 0
    assert ledger.incidents[0].unsaved_ns == 8 * S


def test_at_risk_is_what_the_next_failure_would_lose(job):
    attempt = job.attempt()
    attempt.steps(4, 2)
    attempt.save(1)
    attempt.steps(4, 3)
    job.now = attempt.ranks[0].t
    job.go_on()
    ledger = ledger_of(job)
    assert (ledger.effective_ns, ledger.at_risk_ns) == (20 * S, 12 * S)


# ---- the measure


def test_time_to_recover_and_to_catch_up_have_one_start(job):
    first = job.attempt()
    first.stage("imports", 5)
    first.steps(4, 2)
    saved = first.save(1)
    first.steps(6, 2)
    first.kill()
    first.end(1, after=3)
    job.wait(10)
    second = job.attempt()
    second.stage("imports", 5)
    second.load(saved, 2)
    second.steps(8, 2)
    ledger = finished(job, second)
    (incident,) = ledger.incidents
    assert ledger.time_to_start_ns == 5 * S
    assert (incident.detect_ns, incident.reschedule_ns, incident.restart_ns) == (3 * S, 10 * S, 7 * S)
    assert incident.time_to_recover_ns == 20 * S
    assert incident.time_to_catch_up_ns == (20 + 12) * S
    assert incident.unsaved_ns == 12 * S
    assert ledger.repeated_work_ns == (12 + 7) * S


def test_a_restart_that_dies_has_an_incident_of_its_own(job):
    first = job.attempt()
    first.steps(4, 2)
    saved = first.save(1)
    first.steps(1, 2)
    first.kill()
    first.end(1)
    second = job.attempt()
    second.stage("imports", 5)
    second.kill()
    second.end(1)
    third = job.attempt()
    third.load(saved, 2)
    third.steps(4, 2)
    ledger = finished(job, third)
    assert [i.recovered for i in ledger.incidents] == [False, True]
    assert [i.unsaved_ns // S for i in ledger.incidents] == [2, 0]
    assert ledger.incidents[0].time_to_catch_up_ns is None
    assert number_of(ledger, "failure") == 2


def test_only_saves_block_for_a_checkpoint(job):
    attempt = job.attempt()
    attempt.steps(2, 2)
    attempt.stage("checkpoint_upload_report", 3, user=True)
    attempt.save(1)
    attempt.steps(2, 2)
    assert finished(job, attempt).checkpoint_blocking_ns == S


def test_the_worked_example_of_the_docs(job):
    first = job.attempt(ranks=2, start=False)
    for rank in first.ranks:
        rank.pause(1)
        rank.start(interpreter=2)
    first.stage("imports", 5)
    first.steps(1, 2)
    first.steps(25, 2)
    saved = first.save(1)
    first.steps(19, 2)
    first.pause(1)
    first.kill(1)
    first.end(1, after=1)
    job.wait(9)
    second = job.attempt(ranks=2, start=False)
    for rank in second.ranks:
        rank.pause(1)
        rank.start()
    second.stage("imports", 5)
    second.load(saved, 3)
    second.steps(41, 1)
    second.pause(8)
    second.exit(teardown=2)
    second.end()
    job.bye()
    ledger = ledger_of(job)
    assert ledger.wall_ns == 170 * S
    assert ledger.time_to_start_ns == 8 * S
    assert ledger.unsaved_ns == 39 * S
    (incident,) = ledger.incidents
    assert (incident.detect_ns, incident.reschedule_ns, incident.restart_ns, incident.time_to_recover_ns) == (1 * S, 10 * S, 8 * S, 19 * S)
    assert ledger.effective_ns == 93 * S
    assert round(ledger.ett_pct, 1) == 54.7
    assert round(ledger.formula_pct, 1) == 84.1
    residual = {path.rsplit("/", 1)[-1]: ns // S for path, ns in ledger.residual.items()}
    assert residual == {"unsaved": 39, "untracked": 8, "teardown": 2, "checkpoint_blocking": 1}


# ---- edges


def test_attempts_of_no_duration_break_nothing():
    def rank(number: int) -> RankHistory:
        return RankHistory(rank=number, world=2, devices=1, pid=number, host="", start=10, entered=10, end=10)

    attempts = [AttemptHistory(name=f"{n:03d}", start=10, end=10, ranks=[rank(0), rank(1)]) for n in range(3)]
    attempts.append(AttemptHistory(name="003", start=15, end=20, ranks=[replace(rank(0), start=15, entered=15, end=20)]))
    ledger = account(JobHistory(name="j", attempts=attempts, now=20)).ledger
    assert ledger.wall_ns == 10


def test_a_job_without_attempts_has_no_percentage():
    ledger = account(JobHistory(name="j", attempts=[], now=5)).ledger
    assert ledger.ett_pct is None
    assert ledger.formula_pct is None


def test_of_spans_with_the_same_bounds_the_inner_one_is_billed():
    outer, inner = Span(0, 10, Label("a", True, "")), Span(0, 10, Label("b", True, ""))
    rank = RankHistory(rank=0, world=1, devices=1, pid=1, host="", start=0, entered=0, end=10, spans=[inner, outer])
    ledger = account(JobHistory(name="j", attempts=[AttemptHistory(name="000", start=0, end=10, ranks=[rank])], now=10)).ledger
    assert seconds(ledger) == {"start/b": 10 / S}

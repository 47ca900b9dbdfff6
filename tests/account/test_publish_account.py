"""What a publication cost and how old its data was, from events alone."""

from ettrain.account.history import AttemptHistory, JobHistory, Progress, RankHistory, Save
from ettrain.account.ledger import account
from ettrain.account.publishes import publish_event_of, publishes_of

S = 1_000_000_000
CK = "/ck/step-00000040"


def told(t, act, process="p1", **more):
    record = {"k": "publish", "id": "ranker-1", "place": "/to/ranker/requests/ranker-1", "name": "ranker", "checkpoint": CK, "act": act, **more}
    return publish_event_of(record, t * S, process)


def job(*events, saves=(), last_step=100, progress=()):
    rank = RankHistory(rank=0, world=1, devices=1, pid=1, host="h", start=0, entered=0, end=120 * S, code=0, exit_t=119 * S, steps=40, first_step_t=10 * S, last_step_t=last_step * S)
    rank.progress = [Progress(10 * S, 1, 0), *(Progress(t * S, step, 0) for t, step in progress)]
    rank.saves = [Save(snapshot=t * S, durable=(t + 1) * S, local_step=40, identity=(("path", path),), blocking_ns=0) for t, path in saves]
    attempts = [AttemptHistory(name="000", start=0, end=121 * S, ranks=[rank], code=0)]
    return JobHistory(name="j", attempts=attempts, now=1000 * S, publish_events=list(events))


PUBLISHED = (
    told(110, "asked", "p0", cpu=500 * S),
    told(111, "began", cpu=0),
    told(112, "stage", stage="export", cpu=3 * S),
    told(150, "ended", outcome="published", stage="switch", step=40, created=97 * S, version="step-00000040-1", tries=2, cpu=20 * S),
)


def test_time_to_the_updated_model_counts_from_the_snapshot_and_from_the_last_step():
    (one,) = publishes_of(job(*PUBLISHED, saves=[(90, CK), (99, CK), (105, "/ck/other")]))
    assert (one.outcome, one.step, one.version, one.tries) == ("published", 40, "step-00000040-1", 2)
    assert one.time_to_model_ns == 51 * S
    assert one.after_last_step_ns == 50 * S
    assert (one.cpu_ns, one.wall_ns) == (20 * S, 39 * S)


def test_without_a_save_in_the_journals_the_checkpoints_own_word_counts_and_without_that_none():
    assert publishes_of(job(*PUBLISHED))[0].time_to_model_ns == 53 * S
    silent = (*PUBLISHED[:3], told(150, "ended", outcome="published", cpu=20 * S))
    assert publishes_of(job(*silent))[0].time_to_model_ns is None


def test_where_training_goes_on_the_last_step_is_that_before_the_request():
    (one,) = publishes_of(job(*PUBLISHED, last_step=118, progress=[(104, 38), (116, 60)]))
    assert one.after_last_step_ns == 46 * S


def test_all_publishers_processes_are_billed_also_those_that_were_killed():
    killed = (PUBLISHED[0], told(111, "began", "p1", cpu=1 * S), told(115, "stage", "p1", cpu=4 * S, stage="export"))
    (one,) = publishes_of(job(*killed))
    assert (one.outcome, one.stage, one.cpu_ns, one.switched) == ("unfinished", "export", 4 * S, None)
    again = (*killed, told(130, "began", "p2", cpu=0), told(140, "ended", "p2", outcome="published", cpu=6 * S))
    (one,) = publishes_of(job(*again))
    assert (one.outcome, one.cpu_ns, one.wall_ns) == ("published", 10 * S, 14 * S)


def test_what_nobody_began_is_pending_and_what_failed_is_failed_until_it_is_tried_again():
    assert publishes_of(job(PUBLISHED[0]))[0].outcome == "pending"
    failed = (*PUBLISHED[:3], told(120, "ended", outcome="failed", stage="check", why="no", cpu=4 * S))
    (one,) = publishes_of(job(*failed))
    assert (one.outcome, one.why, one.time_to_model_ns, one.after_last_step_ns) == ("failed", "no", None, None)
    assert publishes_of(job(*failed, told(125, "asked", "p3")))[0].outcome == "pending"
    assert publishes_of(job(*failed, told(125, "began", "p3")))[0].outcome == "unfinished"


def test_asking_again_for_what_is_published_changes_nothing():
    (one,) = publishes_of(job(*PUBLISHED, told(160, "asked", "p9")))
    assert (one.outcome, one.switched, one.asked) == ("published", 150 * S, 110 * S)


def test_publications_change_no_figure_of_the_job():
    with_them, without = account(job(*PUBLISHED)).ledger, account(job()).ledger
    assert with_them == without

"""A script may train twice, or start its program again by itself: one launch, several attempts."""

from ettrain.account.history import AttemptHistory, JobHistory, Load, Progress, RankHistory, Save
from ettrain.account.ledger import account
from ettrain.jobreader import _in_sequence

S = 1_000_000_000


def process(pid, start, end, steps, *, died=False, rank=-1, saves=(), loads=()):
    first = start + 2
    last = first + steps - 1
    return RankHistory(
        rank=rank, world=0, devices=1, pid=pid, host="h", start=start * S, entered=start * S, end=end * S,
        exit_t=None if died else end * S, steps=steps, first_step_t=first * S if steps else None, last_step_t=last * S if steps else None,
        marks={"first_backward": (first - 1) * S, "first_forward": (first - 1) * S} if steps else {},
        progress=[Progress(first * S, 1, 0), Progress(last * S, steps, 0)] if steps else [], limit_ns=10 * S, saves=list(saves), loads=list(loads),
    )  # fmt: skip


def ledger_of(*processes, code=0, end=100):
    attempt = AttemptHistory(name="000", start=0, end=end * S, code=code)
    attempts = _in_sequence(attempt, list(processes))
    return account(JobHistory(name="j", attempts=attempts, now=end * S)).ledger


def test_two_trainings_one_after_the_other_are_no_interruption():
    ledger = ledger_of(process(1, 0, 30, 20), process(2, 30, 60, 20))
    assert [row.exit for row in ledger.attempts] == ["finished", "finished"]
    assert ledger.incidents == ()
    assert ledger.unsaved_ns == 0
    assert ledger.effective_ns == (20 + 20) * S
    assert ledger.steps == 40
    assert not any(leaf.path.startswith("failure/") for leaf in ledger.leaves)


def test_a_script_that_starts_a_killed_program_again_shows_the_interruption():
    key = (("path", "c"),)
    save = Save(snapshot=12 * S, durable=12 * S, local_step=11, identity=key, blocking_ns=0)
    load = Load(t=31 * S, local_step=0, identity=key, path="c")
    ledger = ledger_of(process(1, 0, 30, 20, died=True, saves=[save]), process(2, 30, 60, 20, loads=[load]))
    assert len(ledger.incidents) == 1
    assert ledger.incidents[0].diagnosis.cls == "killed"
    assert ledger.incidents[0].resumed_step == 11
    assert ledger.unsaved_ns == (30 - 12) * S
    assert ledger.status == "finished"


def test_processes_at_the_same_time_are_ranks_of_one_attempt():
    ledger = ledger_of(process(1, 0, 30, 20), process(2, 1, 31, 20))
    assert len(ledger.attempts) == 1
    assert ledger.attempts[0].ranks == 2


def test_a_script_s_preparation_is_part_of_the_launch():
    ledger = ledger_of(process(1, 0, 10, 0), process(2, 10, 60, 20))
    assert len(ledger.attempts) == 1
    assert ledger.steps == 20
    assert ledger.time_to_start_ns == 11 * S

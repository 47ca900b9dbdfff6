"""The worked example at the end of docs/accounting.md is what the code says."""

from pathlib import Path

import pytest

from ettrain.account.assemble import label
from ettrain.account.history import AttemptHistory, JobHistory, Load, Progress, RankHistory, Save, Span
from ettrain.account.ledger import account

S = 1_000_000_000
CHECKPOINT = (("path", "ckpt"),)


def rank(number, start, first, compute, last, end, steps, **more):
    return RankHistory(
        rank=number, world=2, devices=1, pid=number + 1, host="h", start=start * S, entered=start * S, end=end * S, steps=steps,
        first_step_t=first * S, last_step_t=last * S, marks={"first_forward": (first - compute) * S, "first_backward": first * S - 1},
        progress=[Progress(first * S, 1, 0), Progress(last * S, steps, 0)], limit_ns=10 * S, **more,
    )  # fmt: skip


@pytest.fixture
def ledger():
    save = Save(snapshot=60 * S, durable=61 * S, local_step=50, identity=CHECKPOINT, blocking_ns=S)
    load = Load(t=115 * S, local_step=0, identity=CHECKPOINT, path="ckpt")
    imports, saving = Span(3 * S, 8 * S, label("imports")), Span(60 * S, 61 * S, label("checkpoint_save"))
    first = [rank(0, 1, 10, 2, 99, 101, 90, spans=[imports, saving], saves=[save]), rank(1, 1, 10, 2, 99, 100, 90, spans=[imports], code=-9)]
    second = [rank(number, 111, 120, 1, 160, 169, 41, exit_t=168 * S, loads=[load]) for number in (0, 1)]
    attempts = [
        AttemptHistory(name="000", start=0, end=101 * S, code=1, ranks=first),
        AttemptHistory(name="001", start=110 * S, end=170 * S, code=0, ranks=second),
    ]
    return account(JobHistory(name="example", attempts=attempts, now=200 * S)).ledger


def test_the_figures_of_the_example(ledger):
    incident = ledger.incidents[0]
    assert ledger.time_to_start_ns == 8 * S
    assert ledger.unsaved_ns == 39 * S
    assert (incident.detect_ns, incident.reschedule_ns, incident.restart_ns, incident.time_to_recover_ns) == (S, 10 * S, 8 * S, 19 * S)
    assert ledger.effective_ns == 93 * S
    text = (Path(__file__).resolve().parent.parent / "docs/accounting.md").read_text()
    assert f"ETT {ledger.ett_pct:.1f}%" in text
    assert f"= {ledger.formula_pct:.1f}%" in text
    assert {path.rsplit("/", 1)[-1]: ns // S for path, ns in ledger.residual.items()} == {
        "unsaved": 39, "untracked": 8, "teardown": 2, "checkpoint_blocking": 1,
    }  # fmt: skip

"""From what a resumed program loads, the ledger knows where it went on: every way to save and load, as two attempts of a job."""

import pytest
from launching import Job, free_port, read_lines

SCENARIOS = {
    "overwrite": 40,
    "pathlib": 40,
    "tmp and rename": 40,
    "symlink": 40,
    "older chosen": 20,
    "copied away and loaded there": 40,
    "bytes both ways": 40,
    "bytes saved, path loaded": 40,
    "file objects": 40,
    "legacy format": 40,
    "safetensors": 40,
    "pretrained only": 0,
    "pretrained then resume": 40,
    "model and trainer files": 40,
    "last and best": 40,
    "dcp": 40,
    "dcp renamed": 40,
    "dcp by threads": 40,
    "killed inside torch.save": 20,
    "save that failed": 20,
    "async committed": 40,
    "async never committed": 20,
    "saved by a thread": 40,
    "fresh restart": 0,
}
DIES_AT = {"killed inside torch.save": 40}


@pytest.fixture(scope="module")
def matrix(module_job):
    return module_job.program("rollback_matrix"), module_job.root.parent / "jobs"


def job_of(matrix, name):
    codes, jobs = matrix
    if name not in codes:
        pytest.skip("safetensors is not installed")
    return codes[name], Job(jobs / name.replace(" ", "-"))


def saves_of(job, attempt):
    """Step -> when its first save began."""
    spans = [r for records in job.journals(attempt).values() for r in records if r["k"] == "span" and r["name"] == "checkpoint_save"]
    return {record["step"]: record["t"] for record in reversed(spans)}


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_a_resumed_attempt_goes_on_from_the_checkpoint_that_it_loaded(matrix, name):
    codes, job = job_of(matrix, name)
    step, died = SCENARIOS[name], DIES_AT.get(name, 50)
    assert codes == [-9, 0]
    ledger = job.accounted().ledger
    first, second = ledger.attempts
    assert (first.first_step, first.last_step) == (0, died - 1)
    assert second.resume.step == step
    assert (second.first_step, second.last_step) == (step, step + (60 - step) - 1), "trained twice: steps from there to where the first died"
    offset = ledger.start - read_lines(job.paths.supervisor_journal)[2]["t"]
    if step:
        assert second.resume.source == "checkpoint"
        assert second.resume.snapshot == saves_of(job, 0)[step] + offset
        assert second.resume.error_ns == 0
        assert 0 < ledger.unsaved_ns < second.start - second.resume.snapshot
    else:
        assert second.resume.snapshot is None
    assert ledger.repeated_work_ns == ledger.unsaved_ns or ledger.repeated_work_ns > 0
    assert not [r for a in (0, 1) for records in job.journals(a).values() for r in records if r["k"] == "fault"]


def test_what_worker_threads_of_a_save_write_are_no_saves_of_their_own(matrix):
    for name in ("dcp", "dcp by threads", "async committed"):
        _, job = job_of(matrix, name)
        (records,) = job.journals(0).values()
        assert [(r["step"], r["part"].split(".")[0]) for r in records if r.get("name") == "checkpoint_save"] == [(20, "dcp"), (40, "dcp")]


def test_an_asynchronous_save_counts_from_its_commit(matrix):
    _, job = job_of(matrix, "async committed")
    (records,) = job.journals(0).values()
    saves = [r for r in records if r.get("name") == "checkpoint_save"]
    commits = [r for r in records if r["k"] == "commit"]
    assert [r["pending"] for r in saves] == [True, True]
    assert [(r["save"], r["ok"]) for r in commits] == [(r["save"], True) for r in saves]
    assert all(commit["t"] >= save["end"] for commit, save in zip(commits, saves))
    _, job = job_of(matrix, "async never committed")
    (records,) = job.journals(0).values()
    assert [r["save"] for r in records if r["k"] == "commit"] == [1]


def test_a_save_that_failed_protects_nothing(matrix):
    _, job = job_of(matrix, "save that failed")
    (records,) = job.journals(0).values()
    assert [r.get("err") for r in records if r.get("name") == "checkpoint_save"] == [None, "OSError"]


def test_a_save_cut_off_by_sigkill_is_the_stage_that_was_open(matrix):
    _, job = job_of(matrix, "killed inside torch.save")
    assert job.history().attempts[0].ranks[0].open_stage == "checkpoint_save"


def test_a_roll_back_inside_a_process_takes_back_what_was_trained(matrix):
    _, job = job_of(matrix, "roll-back inside")
    ledger = job.accounted().ledger
    (records,) = job.journals(0).values()
    load = next(r for r in records if r.get("name") == "checkpoint_load")
    assert load["step"] == 30
    assert ledger.unsaved_ns > 0


def test_a_checkpoint_read_after_the_last_step_takes_nothing_back(matrix):
    _, job = job_of(matrix, "best read at the end")
    assert job.accounted().ledger.unsaved_ns == 0


BY_PROCESS = """
import os, time, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
if __name__ == '__main__':
    os.environ.update(MASTER_ADDR='127.0.0.1')
    dist.init_process_group('gloo', rank=0, world_size=1)
    model = torch.nn.Linear(8, 1); opt = torch.optim.SGD(model.parameters(), lr=.1)
    for _ in range(3):
        opt.zero_grad(); model(torch.ones(1, 8)).sum().backward(); opt.step()
    dcp.async_save({'m': model.state_dict()}, checkpoint_id='ck', async_checkpointer_type=AsyncCheckpointerType.PROCESS).result()
    time.sleep(.2)
    torch.save(1, 'after.pt')
    dist.destroy_process_group()
"""


@pytest.mark.slow
def test_dcps_background_process_is_no_rank(job, tmp_path):
    (tmp_path / "by_process.py").write_text(BY_PROCESS)
    job.run("by_process.py", RANK="0", WORLD_SIZE="1", MASTER_PORT=free_port())
    assert list(job.journals()) == ["rank-00000"]
    saves = job.records(kind="span", name="checkpoint_save")
    assert [(r["part"], r["step"]) for r in saves] == [("dcp.async_save", 3), ("torch.save", 3)]
    (commit,) = job.records(kind="commit")
    assert (commit["save"], commit["ok"]) == (saves[0]["save"], True)
    assert commit["id"]["fp"]
    assert job.beat().faults == 0

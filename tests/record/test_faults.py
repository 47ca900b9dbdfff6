"""Whatever goes wrong with the recorder: the training computes the same, ends the same, is told of it once, and the count is kept."""

import json
import os
import subprocess
import sys

import pytest
from launching import PROGRAMS, Job

from ettrain import clock
from ettrain.record.recorder import Recorder


@pytest.fixture(scope="module")
def expected(module_job):
    """What the training computes without ettrain."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("ETT_", "PYTHONPATH"))} | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, PROGRAMS / "faults.py"], cwd=module_job.cwd, env=env, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def found(module_job):
    work = module_job.cwd / "work"
    work.mkdir()
    return module_job.program("faults", TEST_WORK=work), work / "jobs"


WELL = [
    "nothing_wrong", "many_stages", "folder_deleted", "forked", "huge_exception", "unprintable_exception", "foreign_files", "handler_raises_inside_us",
    "interrupted_inside_us",
]
BROKEN = [
    "count", "open_stage", "close_stage", "span", "waited", "mark", "backward_done", "emit", "progress", "promote", "next_save", "identity_of", "Loop",
    "Loops.delivered", "Loops.trained", "Loops.ended", "Evaluation.mode_set", "Evaluation.loop_over",
]


def warnings_in(text):
    return [line for line in text.splitlines() if line.startswith("ettrain:")]


@pytest.mark.parametrize("name", WELL)
def test_what_is_no_fault_of_ours_is_none_at_all(found, expected, name):
    outcome = found[0][name]
    assert outcome["code"] == 0
    assert outcome["outcome"]["result"] == expected
    assert outcome["outcome"]["faults"] == 0
    assert warnings_in(outcome["stderr"]) == []


@pytest.mark.parametrize("name", BROKEN)
def test_a_fault_of_ours_is_told_once_and_counted(found, expected, name):
    outcome = found[0][f"broken_{name}"]
    assert outcome["code"] == 0
    assert outcome["outcome"]["result"] == expected
    assert len(warnings_in(outcome["stderr"])) == 1
    faults = outcome["outcome"]["faults"]
    assert faults >= 1
    if name != "promote":
        assert outcome["outcome"]["beat_faults"] == faults
    if name not in ("promote", "emit"):
        job = Job(found[1] / f"broken_{name}")
        assert job.beat().faults == faults
        told = job.records(kind="fault")
        assert all(record["error"].startswith("ZeroDivisionError") for record in told)
        assert [record["count"] for record in told] == [1 << n for n in range(faults.bit_length())][-len(told) :]
        assert job.history().attempts[0].ranks[0].faults == faults


def test_a_process_without_stderr_counts_in_silence(found, expected):
    outcome = found[0]["no_stderr"]
    assert outcome["outcome"]["result"] == expected
    assert outcome["outcome"]["faults"] > 0
    assert outcome["stderr"] == ""


def test_labels_of_any_kind_become_text(found, expected):
    outcome = found[0]["labels"]
    assert outcome["outcome"]["result"] == expected
    assert outcome["outcome"]["steps"] == 5, "a step with a bad number is a step"
    job = Job(found[1] / "labels")
    spans = job.records(kind="span", name="labelled")
    assert len(spans) == 13
    assert spans[0]["part"] == "<Unprintable>"
    assert outcome["outcome"]["faults"] == 4, "the numbers that are none, and nothing else"
    assert outcome["outcome"]["depth"] == 0


def test_a_program_that_forks_keeps_its_record(found):
    journals = sorted(Job(found[1] / "forked").journals().values(), key=lambda records: records[0]["t"])
    assert len(journals) == 2
    parent, child = journals
    assert [r["step"] for r in parent if r["k"] == "exit"] == [12]
    assert max(r["step"] for r in child if r["k"] == "prog") >= 32
    assert child[0]["start"] > parent[0]["t"] - 1_000_000_000
    assert all(r["t"] >= child[0]["start"] for r in child)


def test_a_huge_exception_is_cut_to_a_line(found):
    (record,) = Job(found[1] / "huge_exception").records(kind="exc")
    assert record["type"] == "ValueError"
    assert 1000 <= len(record["message"]) <= 1500


@pytest.fixture
def tmpfs(tmp_path):
    """Mounts a small file system; skips where that is not allowed."""
    mounted = []

    def mount(options):
        folder = tmp_path / f"fs{len(mounted)}"
        folder.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"mount is not permitted: {done.stderr.strip()}")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", folder], check=True)


def test_folders_that_cannot_be_written_or_fill_up(job, tmp_path, tmpfs, expected):
    (tmp_path / "file").touch()
    read_only = tmpfs("size=64k")
    subprocess.run(["mount", "-o", "remount,ro", read_only], check=True)
    full = tmpfs("size=16k")
    (full / "filler").write_bytes(bytes(8 << 10))
    (full / "job/attempts/000").mkdir(parents=True)
    with (full / "filler").open("ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    one_page = tmpfs("size=16k")
    (one_page / "filler").write_bytes(bytes(12 << 10))
    fills = tmpfs("size=24k")
    cases = {
        f"nothing_wrong={tmp_path / 'file/job'}": "cannot write a journal",
        f"nothing_wrong={read_only / 'job'}": "cannot write a journal",
        f"nothing_wrong={full / 'job'}": "cannot write to the journal",
        f"many_stages={one_page / 'job'}": "no beat page",
        f"many_stages={fills / 'job'}": "a journal line was lost",
    }
    work = tmp_path / "work"
    work.mkdir()
    found = job.program("faults", *cases, TEST_WORK=work)
    for name, words in cases.items():
        outcome = found[name]
        assert outcome["code"] == 0, name
        assert outcome["outcome"]["result"] == expected
        (warning,) = warnings_in(outcome["stderr"])
        assert words in warning, name
        assert outcome["outcome"]["faults"] >= 1
        assert outcome["outcome"]["beat_faults"] == outcome["outcome"]["faults"]
        assert outcome["outcome"]["steps"] == 12, "counting goes on"
    beat = Job(fills / "job").beat()
    assert (beat.step, beat.faults) == (12, found[f"many_stages={fills / 'job'}"]["outcome"]["faults"]), "the page was allocated ahead"
    assert Job(fills / "job").history().attempts[0].ranks[0].steps == 12


def test_a_step_of_the_wall_clock_changes_nothing(tmp_path, monkeypatch):
    """Durations come from the monotonic clock; the wall clock is read in pairs with it only, at the head and again at the end."""
    monkeypatch.setenv("ETT_JOB_DIR", str(tmp_path / "job"))
    shift = [0]
    pair = clock.wall_pair
    monkeypatch.setattr(clock, "wall_pair", lambda: (pair()[0] + shift[0], pair()[1]))
    recorder = Recorder()
    recorder.program_step(0)
    shift[0] = -3_600_000_000_000
    begin = recorder.open_stage("evaluation")
    recorder.close_stage("evaluation", begin)
    for number in range(1, 4):
        recorder.program_step(number)
    recorder.finish()
    job = Job(tmp_path / "job")
    head, clocks = job.records(kind="head")[0], job.records(kind="clock")
    assert clocks[-1]["wall"] < head["wall"]
    account = job.accounted()
    assert account.ledger.steps == 4
    lasted = job.records(kind="exit")[0]["t"] - head["start"]
    assert abs(account.ledger.end - account.ledger.start - lasted) < 1_000_000
    times = [r["t"] for r in job.records() if r["k"] in ("prog", "exit")]
    assert times == sorted(times)


def test_the_wall_clock_is_noted_again_and_again_in_a_long_job(tmp_path, monkeypatch):
    monkeypatch.setenv("ETT_JOB_DIR", str(tmp_path / "job"))
    recorder = Recorder()
    t = clock.monotonic_ns()
    for hour in range(5):
        recorder.count(t + hour * 3_600_000_000_000)
    assert len(Job(tmp_path / "job").records(kind="clock")) == 4

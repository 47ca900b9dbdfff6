"""What the jobs of a program teach the next: who is the same program, what is read, and that nothing there is ever an error."""

import json

import pytest

from ettrain import learned
from ettrain.account.dynamic import value_of
from ettrain.jobpaths import JobPaths
from ettrain.learned import Lessons, program_of


def teach(runs, job, source="L['x']", rank=0, attempt="000"):
    """A job in which the first dimension of `source` varied."""
    folder = JobPaths(runs / job).attempt(attempt)
    folder.mkdir(parents=True, exist_ok=True)
    place = {"part": "forward", "where": "/m.py:3"}
    name = source.removeprefix("L['").removesuffix("']")
    records = [
        {"k": "dims", "t": 1, **place, "seen": {source: [5, 4]}},
        {"k": "span", "t": 2, "end": 3, "name": "compile", **place, "reason": f"0/0: tensor '{name}' size mismatch at index 0. expected 5, actual 6", "compile_id": "0/1"},
        {"k": "dims", "t": 2, **place, "seen": {source: [None, 4]}, "was": {source: [5, 4]}},
    ]
    lines = [json.dumps(record, separators=(",", ":")) for record in records]
    (folder / f"rank-{rank:05d}.jsonl").write_text("\n".join([*lines, '{"k":"dims","t":9,"se']))
    return JobPaths(runs / job)


def value(lessons, job):
    return value_of(lessons.dynamic(job))


@pytest.mark.parametrize(
    ("words", "program"),
    [
        (["python", "train.py", "--data", "x.py"], "/here/train.py"),
        (["torchrun", "--nproc-per-node", "2", "/there/train.py"], "/there/train.py"),
        (["python", "-m", "torch.distributed.run", "sub/../train.py"], "/here/train.py"),
        (["python", "-m", "torch.distributed.run", "-m", "pkg.train", "--config", "c.py"], "-m pkg.train"),
        (["torchrun", "-m", "pkg.train"], "-m pkg.train"),
        (["bash", "run.sh"], "/here/run.sh"),
        (["/usr/bin/trainer", "--x"], "trainer"),
        (["python", "-c", "import torch"], "-c import torch"),
    ],
)
def test_the_same_program_is_its_file_or_module_whatever_its_arguments(words, program):
    assert program_of(words, "/here") == program


def test_what_a_job_taught_is_kept_for_other_jobs_of_the_program_alone(tmp_path):
    job = teach(tmp_path, "one")
    Lessons(tmp_path, "/p/train.py").keep(job)
    assert value(Lessons(tmp_path, "/p/train.py"), JobPaths(tmp_path / "two")) == "L['x']:0"
    assert value(Lessons(tmp_path, "/q/train.py"), JobPaths(tmp_path / "three")) == ""


def test_lessons_add_up_over_jobs(tmp_path):
    lessons = Lessons(tmp_path, "/p/train.py")
    lessons.keep(teach(tmp_path, "one"))
    lessons.keep(teach(tmp_path, "two", source="L['y']"))
    assert value(lessons, JobPaths(tmp_path / "three")) == r"L\['(x|y)'\]$:0"


def test_a_job_whose_supervisor_died_is_read_from_its_journals(tmp_path):
    lessons = Lessons(tmp_path, "/p/train.py")
    assert value(lessons, JobPaths(tmp_path / "died")) == ""
    teach(tmp_path, "died")
    assert value(lessons, JobPaths(tmp_path / "next")) == "L['x']:0"
    assert json.loads(lessons.path.read_text())["jobs"] == ["died", "next"]


def test_a_job_learns_from_its_own_attempts_and_all_of_its_ranks(tmp_path):
    teach(tmp_path, "job")
    job = teach(tmp_path, "job", source="L['y']", rank=1)
    assert value(Lessons(tmp_path, "/p/train.py"), job) == r"L\['(x|y)'\]$:0"


def test_no_more_is_read_than_the_bounds_say(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(learned, "_lesson", lambda path: read.append(path) or {})
    lessons = Lessons(tmp_path, "/p/train.py")
    for number in range(20):
        for attempt in range(6):
            folder = JobPaths(tmp_path / f"job{number}").attempt(f"{attempt:03d}")
            folder.mkdir(parents=True)
            for rank in range(40):
                (folder / f"rank-{rank:05d}.jsonl").touch()
    lessons.dynamic(JobPaths(tmp_path / "job0"))
    book = json.loads(lessons.path.read_text())
    lessons.path.write_text(json.dumps(book | {"jobs": [f"job{number}" for number in range(20)]}))
    read.clear()
    lessons.dynamic(JobPaths(tmp_path / "new"))
    assert len(read) == learned.MAX_JOBS * learned.MAX_ATTEMPTS * learned.MAX_RANKS
    assert {path.parts[-4] for path in read} == {f"job{number}" for number in range(12, 20)}
    assert len(json.loads(lessons.path.read_text())["jobs"]) <= learned.MAX_JOBS


@pytest.mark.parametrize("content", ["", "[]", "{", '{"jobs": 3, "dynamic": 4}', '{"jobs": [], "dynamic": [{"function": 1, "where": 2, "places": [3]}]}'])
def test_a_spoilt_file_is_as_good_as_none(tmp_path, content):
    lessons = Lessons(tmp_path, "/p/train.py")
    lessons.keep(teach(tmp_path, "one"))
    lessons.path.write_text(content)
    assert value(lessons, JobPaths(tmp_path / "two")) == ""
    lessons.keep(JobPaths(tmp_path / "one"))
    assert value(lessons, JobPaths(tmp_path / "two")) == "L['x']:0"


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / ".learned").write_text("in the way")
    lessons = Lessons(tmp_path, "/p/train.py")
    job = teach(tmp_path, "one")
    lessons.keep(job)
    assert value(lessons, job) == "L['x']:0"


def test_a_job_that_taught_nothing_leaves_no_file(tmp_path):
    Lessons(tmp_path, "/p/train.py").keep(JobPaths(tmp_path / "one"))
    assert list(tmp_path.iterdir()) == []

"""What a job has been through reaches the next attempt and the other jobs: real `ett run`, real SIGKILL, no torch."""

import json
import os
import subprocess
import sys

from ettrain import experience, learnedfailures
from ettrain.jobpaths import JobPaths
from ettrain.predict.failures import Experience

PROGRAM = """
import json, os, signal, sys
import ettrain as ett
from ettrain.boost.checkpoint.experience import expected_failures
for number in range(3):
    ett.step(number)
told = expected_failures(1)
print(json.dumps([told.failures, told.fleet_failures, told.fleet_jobs, told.assumed, told.exposure_s, told.seconds]), flush=True)
if int(os.environ["ETT_ATTEMPT"]) < int(sys.argv[1]):
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2:] == ["bug"]:
    raise TypeError("mine")
"""


def run(tmp_path, job, *words, restarts=0):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-c", "import sys; from ettrain.cli import main; sys.exit(main())", "run"]
    options = [
        "--job",
        job,
        "--runs",
        str(tmp_path / "runs"),
        "--restarts",
        str(restarts),
        "--quiet",
        "--",
        sys.executable,
        str(program),
        *words,
    ]
    output = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    return [json.loads(line) for line in output.stdout.splitlines()]


def test_each_attempt_knows_the_failures_before_it_and_other_jobs_learn_at_the_end(tmp_path):
    told = run(tmp_path, "first", "2", restarts=2)
    assert [line[:4] for line in told] == [[0, 0, 0, True], [1, 0, 0, False], [2, 0, 0, False]]
    assert told[0][4] < told[1][4] < told[2][4]
    assert told[0][5] > 10 * told[1][5] > 10 * told[2][5]
    [other] = run(tmp_path, "second", "0")
    assert other[:4] == [0, 2, 1, False]
    assert other[5] < told[0][5] / 10


def test_a_mistake_in_the_program_is_no_failure_to_expect_again(tmp_path):
    run(tmp_path, "bug", "0", "bug")
    own = learnedfailures.read(JobPaths(tmp_path / "runs" / "bug")).own
    assert own.failures == 0
    assert own.exposure_s > 0


def test_what_cannot_be_read_is_not_known(tmp_path):
    jobs = {name: JobPaths(tmp_path / name) for name in ("good", "torn", "odd", "negative", "empty")}
    for job in jobs.values():
        learnedfailures.write(job, Experience(failures=2, exposure_s=100.0, devices=4), [])
    jobs["torn"].learned("failures").write_text('{"own": {"fail')
    jobs["odd"].learned("failures").write_text("[]")
    jobs["negative"].learned("failures").write_text('{"own": {"failures": -1, "exposure_s": 5, "devices": 1}, "fleet": []}')
    jobs["empty"].learned("failures").unlink()
    assert experience.others(JobPaths(tmp_path / "mine")) == [Experience(failures=2, exposure_s=100.0, devices=4)]
    assert experience.others(jobs["good"]) == []
    assert experience.others(JobPaths(tmp_path / "nowhere" / "mine")) == []


def test_only_so_many_jobs_are_read(tmp_path):
    for number in range(experience.MAX_JOBS + 20):
        job = JobPaths(tmp_path / f"job{number}")
        learnedfailures.write(job, Experience(failures=number, exposure_s=1.0), [])
        os.utime(job.learned("failures"), (number, number))
    found = experience.others(JobPaths(tmp_path / "mine"))
    assert sorted(one.failures for one in found) == list(range(20, experience.MAX_JOBS + 20))


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "job").write_text("a file")
    learnedfailures.write(JobPaths(tmp_path / "job"), Experience(failures=0, exposure_s=0.0), [])

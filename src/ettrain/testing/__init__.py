"""For tests: a clock that stands still, and a job that never ran but left the files of one that did.

    job = FakeJob(tmp_path, "tiny")
    attempt = job.attempt(ranks=2)
    attempt.stage("device_init", 30)
    attempt.steps(10, 2.5)
    saved = attempt.save(4)
    attempt.steps(3, 2.5)
    attempt.kill(rank=1)
    attempt.end(code=1, after=5)
    job.wait(60)
    again = job.attempt(ranks=2)
    again.load(saved, 3)
    again.steps(10, 2.5)
    again.exit()
    again.end()
    job.bye()
    ledger = account(JobReader(job.paths).read()).ledger

Each rank has a place in time of its own; what an attempt is told, all its ranks do. Times are seconds, kept as whole ns. The files
are those that the recorder and the supervisor write (`events` names the records), by the same writers. `stories` are random jobs
for property tests; they need hypothesis: pip install 'ettrain[testing]'.
"""

from ettrain.testing.fakejob import FakeAttempt, FakeJob
from ettrain.testing.fakerank import FakeCheckpoint, FakeClock, FakeHost, FakeRank
from ettrain.testing.stories import Story, stories

__all__ = ["FakeAttempt", "FakeCheckpoint", "FakeClock", "FakeHost", "FakeJob", "FakeRank", "Story", "stories"]

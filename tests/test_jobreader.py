"""Opening a job's folder: which process was which rank, when each ended, whether it still runs, on one clock."""

from __future__ import annotations

import json
import os
from itertools import pairwise

import pytest

from ettrain import clock
from ettrain import events as e
from ettrain.account.ledger import account
from ettrain.beat import open_beat
from ettrain.errors import JobNotFoundError, JournalError
from ettrain.jobpaths import JobPaths
from ettrain.jobreader import JobReader, find_job
from ettrain.testing import FakeHost, FakeJob

S = 1_000_000_000


@pytest.fixture
def job(tmp_path):
    job = FakeJob(tmp_path)
    yield job
    job.close()


def history(job):
    return JobReader(job.paths).read(job.wall_ns)


# ---- finding


def test_a_job_is_found_by_name_by_path_or_as_the_newest(tmp_path):
    for name in ("old", "new"):
        FakeJob(tmp_path, name).close()
    os.utime(tmp_path / "old/supervisor.jsonl", (1, 1))
    assert find_job(tmp_path, "old").root == tmp_path / "old"
    assert find_job(tmp_path, None).root == tmp_path / "new"
    assert find_job(tmp_path / "elsewhere", str(tmp_path / "old")).root == tmp_path / "old"


def test_a_job_that_is_not_there_is_named_beside_those_that_are(tmp_path):
    FakeJob(tmp_path, "mine").close()
    (tmp_path / ".importing-7" / "x" / "attempts").mkdir(parents=True)
    with pytest.raises(JobNotFoundError, match=r"no job named 'yours'.*mine"):
        find_job(tmp_path, "yours")
    with pytest.raises(JobNotFoundError, match="no job yet"):
        find_job(tmp_path / "empty", None)
    with pytest.raises(JobNotFoundError):
        find_job(tmp_path, "../etc")


# ---- what cannot be read


def test_a_folder_of_nothing_readable_says_why(tmp_path):
    (tmp_path / "j/attempts/000").mkdir(parents=True)
    (tmp_path / "j/supervisor.jsonl").write_text("no journal\n")
    with pytest.raises(JournalError, match=r"supervisor.jsonl: is not a journal.*ett doctor"):
        JobReader(JobPaths(tmp_path / "j")).read()


def test_a_foreign_file_among_the_journals_is_a_note(job):
    attempt = job.attempt()
    attempt.steps(3, 2)
    attempt.exit()
    attempt.end()
    job.bye()
    folder = job.paths.attempt("000")
    (folder / "rank-00001.jsonl").write_text('{"k":"span","t":1,"name":"x","end":2}\n{"k":"head","schema":1,"t":1,"wall":1,"pid":5,"rank":1}\n')
    (folder / "rank-00002.jsonl").write_text('{"k":"head","schema":99}\n')
    (folder / "rank-00003.jsonl").write_text('{"k":"head","schema":1,"rank":3}\n')
    (folder / "rank-00004.jsonl").write_text('{"k":"head","sche')
    (folder / "agent-p5.jsonl").write_text("text\n")
    reader = JobReader(job.paths)
    for _ in range(2):
        found = reader.read(job.wall_ns)
        assert [rank.rank for rank in found.attempts[0].ranks] == [0]
        assert len(found.notes) == 4
        assert account(found).ledger.effective_ns == 6 * S


def test_records_of_the_supervisor_that_lack_what_they_need_are_counted(job):
    attempt = job.attempt()
    attempt.steps(3, 2)
    attempt.exit()
    with job.paths.supervisor_journal.open("a") as file:
        for record in ({"k": "end"}, {"k": "begin", "t": "soon", "attempt": "007"}, {"k": "end", "t": 5, "attempt": 7}, {"k": "head", "t": 1}, {"k": "job", "t": 1, "command": 5, "submitted": "x"}):
            file.write(json.dumps(record) + "\n")
    attempt.end()
    job.bye()
    found = history(job)
    assert len(found.attempts) == 1
    assert found.torn_lines == 2
    assert found.command == ()
    assert account(found).ledger.status == "finished"


# ---- ends


def test_the_supervisor_knows_when_a_process_ended_and_the_agent_how(job):
    attempt = job.attempt(ranks=2)
    attempt.steps(3, 2)
    attempt.kill(1, code=None)
    attempt.ranks[1].code = -11
    second = attempt.restarted(ranks=2, after=2)
    second.steps(3, 2)
    second.exit()
    second.end()
    job.bye()
    found = history(job)
    assert [attempt.name for attempt in found.attempts] == ["000", "000-r1"]
    first = found.attempts[0]
    assert [rank.code for rank in first.ranks] == [None, -11]
    assert first.ranks[1].end == job.origin + 6 * S
    assert first.end == found.attempts[1].start == job.origin + 8 * S
    assert (first.code, found.attempts[1].code) == (None, 0)
    incident = account(found).ledger.incidents[0]
    assert (incident.diagnosis.cls, incident.diagnosis.rank, incident.detect_ns) == ("segfault", 1, 2 * S)


def test_a_rank_of_a_restart_that_died_has_its_own_end(job):
    second = job.attempt(ranks=1).restarted(ranks=2, after=1)
    second.steps(3, 2)
    second.kill(0, code=None)
    second.steps(2, 2)
    second.end(1)
    job.bye()
    last = history(job).attempts[-1]
    assert [rank.end - job.origin for rank in last.ranks] == [7 * S, 11 * S]


def test_where_the_supervisor_vanished_the_last_sign_of_life_is_the_end(job):
    attempt = job.attempt()
    attempt.steps(8, 2)
    job._beat[e.B_ACTIVE_T] = job.hosts[0].monotonic(15 * S)
    os.utime(job.paths.supervisor_beat, (1, 1))
    found = history(job)
    assert not found.running
    assert found.attempts[0].lost
    assert found.attempts[0].end == job.origin + 16 * S
    assert account(found).ledger.incidents[0].diagnosis.cls == "supervisor_lost"


def test_a_later_supervisor_s_sign_of_life_says_nothing_of_an_earlier_attempt(job):
    attempt = job.attempt()
    attempt.steps(8, 2)
    attempt.ranks[0].close()
    job.now = 100 * S
    job.resume()
    job.wait(5)
    again = job.attempt()
    again.steps(3, 2)
    again.exit()
    again.end()
    job.bye()
    found = history(job)
    assert found.attempts[0].end == job.origin + 16 * S
    ledger = account(found).ledger
    assert ledger.incidents[0].reschedule_ns == (105 - 16) * S
    assert ledger.status == "finished"


def test_without_a_supervisor_the_journals_alone_tell(job):
    attempt = job.attempt(ranks=2)
    attempt.steps(8, 2)
    attempt.exit()
    job.paths.supervisor_journal.unlink()
    job.paths.supervisor_beat.unlink()
    found = history(job)
    assert found.attempts[0].code == 0
    assert account(found).ledger.effective_ns == 16 * S


def test_a_process_with_the_same_number_on_another_host_is_another_one(job):
    hosts = [FakeHost(name="a", boot="a"), FakeHost(name="b", boot="b")]
    job = FakeJob(job.paths.root.parent, "two", hosts=hosts)
    attempt = job.attempt(ranks=2)
    attempt.ranks[1].pid = attempt.ranks[0].pid
    attempt.steps(4, 2)
    attempt.kill(0)
    attempt.steps(2, 2)
    attempt.end(1)
    job.bye()
    job.close()
    ranks = history(job).attempts[0].ranks
    assert ranks[0].end == job.origin + 8 * S
    assert ranks[1].end == job.origin + 12 * S


# ---- which rank


def test_of_two_processes_that_claim_a_rank_the_one_that_trained_is_it(job):
    attempt = job.attempt()
    attempt.steps(3, 2)
    (rank,) = attempt.ranks
    head = {"k": "head", "schema": 1, "t": 1000 * S + 1, "wall": job.origin + 1, "boot": rank.host.boot, "pid": 9, "rank": 0, "world": 1}
    (job.paths.attempt("000") / "rank-00000-p9.jsonl").write_text(json.dumps(head) + "\n")
    attempt.exit()
    attempt.end()
    job.bye()
    (only,) = history(job).attempts[0].ranks
    assert only.pid == rank.pid


def test_ranks_that_start_after_another_died_are_no_attempt_of_their_own(job):
    attempt = job.attempt(ranks=2, start=False)
    attempt.ranks[0].start()
    attempt.ranks[0].pause(1)
    attempt.kill(0)
    attempt.ranks[1].pause(3)
    attempt.ranks[1].start()
    attempt.ranks[1].pause(2)
    attempt.end(1)
    job.bye()
    assert [len(attempt.ranks) for attempt in history(job).attempts] == [2]


# ---- running


def test_a_job_of_this_boot_runs_as_long_as_its_supervisor_does(tmp_path):
    job = FakeJob(tmp_path, hosts=[FakeHost(name="here", boot=clock.boot_id())])
    head = json.loads(job.paths.supervisor_journal.read_text().splitlines()[0])
    for pid, start, running in ((os.getpid(), clock.process_start_ns(os.getpid()), True), (os.getpid(), 5, False), (1 << 22, 5, False)):
        head.update(pid=pid, start=start)
        job.paths.supervisor_journal.write_text(json.dumps(head) + "\n")
        assert JobReader(job.paths).read().running == running
    job.close()


def test_a_job_of_another_host_runs_while_it_shows_life(job):
    job.attempt().steps(3, 2)
    assert JobReader(job.paths).read().running
    os.utime(job.paths.supervisor_beat, (1, 1))
    assert not JobReader(job.paths).read().running
    job.go_on()
    assert JobReader(job.paths).read().running
    job.bye()
    assert not JobReader(job.paths).read().running


def test_a_snapshot_of_a_running_job_stays_at_its_instant(job):
    attempt = job.attempt()
    attempt.steps(3, 2)
    job.tell({"k": "job", "live_at": job.origin + 7 * S})
    os.utime(job.paths.supervisor_beat, (1, 1))
    found = JobReader(job.paths).read()
    assert (found.running, found.now) == (True, job.origin + 7 * S)
    assert account(found).ledger.wall_ns == 7 * S


def test_now_is_told_by_the_job_s_own_clock_on_this_boot(tmp_path):
    host = FakeHost(name="here", boot=clock.boot_id(), monotonic_0=clock.monotonic_ns())
    job = FakeJob(tmp_path, hosts=[host])
    assert abs(JobReader(job.paths).read().now - job.origin) < 60 * S
    job.close()


# ---- clocks


def story_on(hosts, folder):
    job = FakeJob(folder, "clocks", hosts=hosts)
    for _ in range(2):
        attempt = job.attempt(ranks=len(hosts))
        attempt.stage("imports", 3)
        attempt.steps(20, 2)
        attempt.kill(0)
        attempt.end(1, after=1)
        job.wait(5)
    job.bye()
    job.close()
    return job


def test_hosts_are_put_on_the_supervisor_s_clock_whatever_they_are_called(tmp_path):
    for number, boots in enumerate((("a", "z"), ("z", "a"), ("m", "z", "a"))):
        hosts = [FakeHost(name=boot, boot=boot, skew_ns=index * 7 * S, monotonic_0=(1 + index) * 50 * S) for index, boot in enumerate(boots)]
        folder = tmp_path / str(number)
        found = history(story_on(hosts, folder))
        assert found.attempts[0].start == 1_767_225_600 * S
        assert {rank.start for rank in found.attempts[0].ranks} == {1_767_225_600 * S}
        assert found.clock_correction_ns == 7 * S * (len(boots) - 1)


def test_a_host_is_corrected_through_another_where_it_never_trained_with_the_first(tmp_path):
    hosts = [FakeHost(name="a", boot="a"), FakeHost(name="b", boot="b", skew_ns=5 * S), FakeHost(name="c", boot="c", skew_ns=-9 * S)]
    job = FakeJob(tmp_path, hosts=hosts[:2])
    first = job.attempt(ranks=2)
    first.steps(5, 2)
    first.end(1)
    job.hosts.append(hosts[2])
    job.hosts.pop(0)
    second = job.attempt(ranks=2)
    job.hosts.insert(0, hosts[0])
    second.steps(5, 2)
    second.end(1)
    job.bye()
    job.close()
    starts = [{rank.start - job.origin for rank in attempt.ranks} for attempt in history(job).attempts]
    assert starts == [{0}, {10 * S}]


def test_clocks_that_differ_by_little_are_left_alone(tmp_path):
    hosts = [FakeHost(name="a", boot="a"), FakeHost(name="b", boot="b", skew_ns=9_000_000)]
    assert history(story_on(hosts, tmp_path)).clock_correction_ns == 0


def test_the_earliest_pair_of_clocks_of_a_boot_counts_whichever_file_it_is_in(job):
    attempt = job.attempt(ranks=2, start=False)
    late, early = attempt.ranks
    early.start()
    job.hosts[0].steps.append((1 * S, 1000 * S))
    late.pause(2)
    late.start()
    job.paths.supervisor_journal.unlink()
    found = history(job)
    assert [rank.start - job.origin for rank in found.attempts[0].ranks] == [2 * S, 0]


# ---- what the beat page alone knows


def test_the_last_steps_before_a_kill_are_those_of_the_beat_page(job):
    attempt = job.attempt()
    attempt.steps(63, 0.01)
    attempt.kill()
    attempt.end(-9)
    job.bye()
    (rank,) = history(job).attempts[0].ranks
    assert rank.steps == 63
    assert all(a.t <= b.t and a.step <= b.step for a, b in pairwise(rank.progress))


def test_a_beat_page_of_another_process_is_not_read(job):
    attempt = job.attempt()
    attempt.steps(3, 0.01)
    attempt.kill()
    attempt.end(-9)
    job.bye()
    path = job.paths.attempt("000") / "rank-00000.beat"
    path.unlink()
    slots = open_beat(path, 99)
    slots[e.B_STEP], slots[e.B_STEP_T] = 500, 1010 * S
    assert history(job).attempts[0].ranks[0].steps == 2

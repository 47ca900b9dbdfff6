"""A job's folder that grows as its story is told: the supervisor's part, and one launch of the job's processes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ettrain import events as e
from ettrain.beat import open_beat
from ettrain.events import Record
from ettrain.jobpaths import JobPaths, attempt_name
from ettrain.journal import JournalWriter
from ettrain.testing.fakerank import EPOCH_S, FakeCheckpoint, FakeHost, FakeRank, Vanished, to_ns


class FakeJob:
    """A job's folder that grows as its story is told.

    Attributes:
        paths: the files.
        now: where the story is, job ns since its begin.
        hosts: the machines; `hosts[0]` runs the supervisor.
        ranks: all processes so far.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        name: str = "fake",
        *,
        start_wall: float = EPOCH_S,
        hosts: Sequence[FakeHost] = (),
        devices_per_rank: int = 1,
        submitted: float | None = None,
        command: Sequence[str] = ("python", "train.py"),
    ) -> None:
        self.paths = JobPaths(Path(folder) / name)
        self.paths.attempts.mkdir(parents=True)
        self.now = 0
        self.origin = to_ns(start_wall)
        self.hosts = list(hosts) or [FakeHost(name="host-0", boot=f"fake-{name}-0")]
        self.devices_per_rank = devices_per_rank
        self.ranks: list[FakeRank] = []
        self._pids = 1000
        self.saves = 0
        self._launches = 0
        self._writer = JournalWriter(self.paths.supervisor_journal)
        self._beat = open_beat(self.paths.supervisor_beat, self.next_pid())
        asked = {"command": list(command), "devices_per_rank": devices_per_rank, "labels": {}}
        self._open(None if submitted is None else to_ns(submitted), asked)

    # ---- the supervisor

    @property
    def wall_ns(self) -> int:
        """Where the story is, on the job's clock (true epoch ns)."""
        return self.origin + self.now

    def wait(self, seconds: float) -> None:
        """Time passes between attempts."""
        self.now += to_ns(seconds)

    def attempt(self, *, ranks: int = 1, world: int | None = None, start: bool = True) -> FakeAttempt:
        """The supervisor launches the job.

        Args:
            ranks: how many processes come up; `world` of them are expected.
            start: their processes begin at once; otherwise call `FakeRank.start`.
        """
        attempt = FakeAttempt(self, attempt_name(self._launches), self._launches)
        self.tell({"k": "begin", "attempt": attempt.name, "launch": self._launches})
        self._launches += 1
        attempt.add_ranks(ranks, world, start=start)
        return attempt

    def resume(self, *, host: int = 0) -> None:
        """A new supervisor takes the job up, perhaps on another host."""
        self.hosts.insert(0, self.hosts.pop(host))
        self._beat[e.B_PID], self._beat[e.B_ACTIVE_T] = self.next_pid(), 0
        self._open(None, {"command": ["python", "train.py"], "devices_per_rank": self.devices_per_rank, "labels": {}})

    def note(self, text: str) -> None:
        """Something for the report's reader."""
        self.tell({"k": "note", "text": text})

    def bye(self) -> None:
        """The supervisor leaves in good order."""
        self.tell({"k": "bye"})

    def go_on(self) -> None:
        """The supervisor shows life: until a minute from now (of the real clock) the job counts as running."""
        self._beat[e.B_ACTIVE_T] = self.hosts[0].monotonic(self.now)
        os.utime(self.paths.supervisor_beat)

    def tell(self, record: Record, t: int | None = None) -> None:
        """Write a record of the supervisor's."""
        at = self.now if t is None else t
        self._writer.write({**record, "t": self.hosts[0].monotonic(at)})
        self._beat[e.B_ACTIVE_T] = max(self._beat[e.B_ACTIVE_T], self.hosts[0].monotonic(at))

    def _open(self, submitted: int | None, asked: dict[str, Any]) -> None:
        host = self.hosts[0]
        head = {"k": "head", "schema": e.SCHEMA, "wall": host.wall(self.now, self.origin), "boot": host.boot, "host": host.name}
        self.tell({**head, "pid": self._beat[e.B_PID], "role": "supervisor"})
        self.tell({"k": "job", "submitted": submitted, **asked})

    def close(self) -> None:
        """Let go of all files; the story is over."""
        self._writer.close()
        for rank in self.ranks:
            rank.close()

    def next_pid(self) -> int:
        """A process id of its own for whoever asks."""
        self._pids += 1
        return self._pids


class FakeAttempt:
    """One launch, or one restart of torchrun's own within it.

    Attributes:
        ranks: its processes, by rank.
    """

    def __init__(self, job: FakeJob, name: str, launch: int, restart: int = 0) -> None:
        self.job = job
        self.name = name
        self.launch = launch
        self.ranks: list[FakeRank] = []
        self._restart = restart
        job.paths.attempt(name).mkdir()

    def add_ranks(self, ranks: int, world: int | None = None, *, start: bool = True) -> None:
        """Create the processes, over the hosts in turn."""
        hosts = self.job.hosts
        for number in range(ranks):
            host = hosts[number * len(hosts) // ranks]
            rank = FakeRank(self, number, ranks if world is None else world, host)
            self.ranks.append(rank)
            self.job.ranks.append(rank)
            if start:
                rank.start()

    @property
    def living(self) -> list[FakeRank]:
        """Its processes that have started and not ended."""
        return [rank for rank in self.ranks if rank.living]

    def sync(self) -> None:
        """All ranks wait for the last one; the wait counts as what they were in."""
        latest = max(rank.t for rank in self.living)
        for rank in self.living:
            rank.t = latest

    def each(self, tell: Callable[[FakeRank], object]) -> None:
        """Tell every living rank the same; one that dies meanwhile is gone."""
        for rank in self.living:
            with contextlib.suppress(Vanished):
                tell(rank)

    def pause(self, seconds: float) -> None:
        """Time passes, and no stage covers it."""
        self.each(lambda rank: rank.pause(seconds))

    def stage(self, name: str, seconds: float, *, user: bool = False, part: str = "") -> None:
        """Every rank goes through a stage."""
        self.each(lambda rank: rank.stage(name, seconds, user=user, part=part))

    def steps(self, count: int, seconds_each: float, *, wait: float = 0, compiling: float = 0) -> None:
        """Every rank trains; `wait` is the part of each step spent waiting for data, `compiling` an extra part of the first one."""
        self.each(lambda rank: rank.steps(count, seconds_each, wait=wait, compiling=compiling))

    def save(self, seconds: float, path: str = "", *, commit_after: float | None = None) -> FakeCheckpoint:
        """Rank 0 saves while the others wait in the same stage; see `FakeRank.save`."""
        saver, *others = self.living
        for rank in others:
            rank.stage("checkpoint_save", seconds)
        return saver.save(seconds, path, commit_after=commit_after)

    def load(self, checkpoint: FakeCheckpoint | None, seconds: float) -> None:
        """Every rank loads a checkpoint (None: one that this job did not save)."""
        self.each(lambda rank: rank.load(checkpoint, seconds))

    def said(self, step: int) -> None:
        """Every rank's program names its own step."""
        self.each(lambda rank: rank.said(step))

    def kill(self, rank: int = 0, *, code: int | None = -9) -> None:
        """One rank vanishes where it is; the others go on until the attempt's end."""
        self.ranks[rank].vanish(code)

    def exit(self, code: int = 0, *, teardown: float = 0) -> None:
        """Every rank that is still there ends in good order."""
        self.each(lambda rank: rank.exit(code, teardown=teardown))

    def restarted(self, *, ranks: int = 1, world: int | None = None, after: float = 0, start: bool = True) -> FakeAttempt:
        """torchrun's agent notices `after` seconds from the last instant of any rank, and starts its workers again."""
        self._close(after)
        for host in {rank.host.boot: rank.host for rank in self.ranks}.values():
            self._agent(host)
        following = FakeAttempt(self.job, attempt_name(self.launch, self._restart + 1), self.launch, self._restart + 1)
        following.add_ranks(ranks, world, start=start)
        return following

    def _agent(self, host: FakeHost) -> None:
        """What the agent on that host saw of its ranks' ends."""
        job, now = self.job, self.job.now
        pid, t = job.next_pid(), host.monotonic(now)
        head = {"k": "head", "schema": e.SCHEMA, "t": t, "wall": host.wall(now, job.origin), "boot": host.boot, "role": "agent", "pid": pid}
        mine = [rank for rank in self.ranks if rank.host is host and rank.code is not None]
        gone: list[Record] = [{"k": "gone", "t": t, "pid": rank.pid, "rank": rank.rank, "code": rank.code} for rank in mine]
        agent = JournalWriter(job.paths.attempt(self.name) / f"agent-p{pid}.jsonl")
        agent.write_all([head, *gone, {"k": "noticed", "t": t}])
        agent.close()

    def end(self, code: int | None = 0, *, after: float = 0, sent: Sequence[str] = (), reason: str = "", oom: int = 0) -> None:
        """The launcher is gone `after` seconds from the last instant of any rank; what still lives is ended."""
        self._close(after)
        record: Record = {"k": "end", "attempt": attempt_name(self.launch), "code": code, "sent": list(sent), "oom": oom}
        if reason:
            record["reason"] = reason
        self.job.tell(record)

    def _close(self, after: float) -> None:
        latest = max([self.job.now, *(rank.t for rank in self.ranks if rank.started)])
        self.job.now = latest + to_ns(after)
        for rank in self.ranks:
            if rank.living:
                rank.t = self.job.now
                rank.vanish(None)

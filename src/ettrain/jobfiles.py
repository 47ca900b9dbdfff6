"""Reads the journals of a job's folder, again and again, each time only what is new, on one clock. What they mean: `jobreader`."""

from __future__ import annotations

import os
from pathlib import Path

from ettrain.account.assemble import RankBuilder
from ettrain.beat import read_beat
from ettrain.errors import JournalError
from ettrain.events import MAX_LINE, Beat, Record, decode
from ettrain.jobclocks import HostClocks, Shared, boot_of
from ettrain.jobpaths import JobPaths
from ettrain.journal import JournalTail

Told = tuple[Record, str]
"""A supervisor's or agent's record and the boot whose clock it is on."""


class Process:
    """One rank's process: its journal, its beat page, its builder."""

    def __init__(self, path: Path, attempt: str) -> None:
        self.path = path
        self.attempt = attempt
        self.tail = JournalTail(path)
        self.builder: RankBuilder | None = None
        self.problem = ""
        self._fresh: list[Record] = []

    @property
    def head(self) -> Record:
        """The journal's first record; empty before it was read."""
        return self.tail.head or {}

    @property
    def boot(self) -> str:
        """Boot of the process's host."""
        return boot_of(self.head)

    @property
    def pid(self) -> int:
        """Process id, 0 where unknown."""
        pid = self.head.get("pid")
        return pid if isinstance(pid, int) else 0

    def beat(self) -> Beat | None:
        """The beat page, if it is this process's."""
        beat = read_beat(self.path.with_suffix(".beat"))
        return beat if beat is not None and beat.pid == self.pid else None

    def last_seen(self) -> int:
        """Last instant known of the process (job clock): its end, where nobody saw it."""
        if self.builder is None:
            return 0
        beat = self.beat()
        known = [t for t in (beat.active_t, beat.step_t) if t] if beat is not None else []
        return max([self.builder.end_seen(), *(t + self.builder.offset for t in known)])

    def peek(self) -> Record | None:
        """The head of a journal that was not read yet, if it has a clock: all heads must be seen before any record gets its time."""
        try:
            with self.path.open("rb") as file:
                head = decode(file.readline(MAX_LINE + 1))
        except OSError:
            return None
        return head if head is not None and head["k"] == "head" and _has_clock(head) else None

    def read(self) -> None:
        """Take what was added to the journal."""
        self.problem = ""
        records, self.problem = read_tail(self)
        self._fresh.extend(records)

    def build(self, offset: int) -> None:
        """Bring the builder up to what was read; from the start again if the clock's offset is another one now."""
        if self.tail.head is None:
            return
        if self.builder is not None and self.builder.offset != offset:
            self.tail, self._fresh = JournalTail(self.path), []
            self.read()
            self.builder = None
        if self.builder is None and self.tail.head is not None:
            self.builder = RankBuilder(self.tail.head, offset)
        if self.builder is not None:
            self.builder.feed(self._fresh)
            self._fresh = []


class _Source:
    """A journal that is no rank's: the supervisor's, that of torchrun's agent on one host, or that of a process that publishes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tail = JournalTail(path)
        self.records: list[Record] = []


def read_tail(holder: Process | _Source) -> tuple[list[Record], str]:
    """(new records, what is wrong) of a journal; one that was refused is judged anew from its start the next time."""
    tail = holder.tail
    try:
        records = tail.read_new()
    except JournalError as error:
        only_torn = tail.torn and not tail.bad_lines
        if tail.head is not None:
            return [], str(error)
        holder.tail = JournalTail(holder.path)
        return [], "" if only_torn else str(error)
    if tail.head is not None and not _has_clock(tail.head):
        holder.tail = JournalTail(holder.path)
        return [], str(JournalError(str(holder.path), "has a head without a clock", "Remove it from the job's folder."))
    return records, ""


def _has_clock(head: Record) -> bool:
    return isinstance(head.get("t"), int) and isinstance(head.get("wall"), int)


class JobFiles:
    """All that a job's folder holds.

    Attributes:
        told: the supervisors' records, in order.
        processes: the ranks' processes, by path.
        clocks: how the hosts' clocks relate.
        problems: what could not be read, in words.
        bad_records: supervisors' and agents' records that lack what their kind needs.
    """

    def __init__(self, paths: JobPaths) -> None:
        self.paths = paths
        self.told: list[Told] = []
        self.processes: dict[Path, Process] = {}
        self.clocks = HostClocks()
        self.problems: list[str] = []
        self.bad_records = 0
        self._supervisor = _Source(paths.supervisor_journal)
        self._boot: str | None = None
        self._agents: dict[str, dict[Path, _Source]] = {}
        self._publishers: dict[Path, _Source] = {}

    def read(self) -> None:
        """Take what was added to any file since the last call."""
        self.problems = []
        self._read_supervisor()
        self._read_attempts()
        self._read_publishers()
        processes = self.processes.values()
        for process in processes:
            if process.tail.head is None:
                head = process.peek()
                if head is not None:
                    self.clocks.see(head)
        for process in processes:
            process.read()
            if process.problem:
                self.problems.append(process.problem)
            process.build(self.clocks.offset(process.boot))
        if len({process.boot for process in processes if process.builder is not None}) > 1:
            self.clocks.correct(self._shared(), self._reference())
            for process in processes:
                process.build(self.clocks.offset(process.boot))

    def agents_of(self, attempt: str) -> list[tuple[Record, int]]:
        """(record, its instant on the job's clock) of torchrun's agents in one attempt."""
        return [
            (record, int(record["t"]) + self.clocks.offset(boot_of(agent.tail.head)))
            for agent in self._agents.get(attempt, {}).values()
            for record in agent.records
        ]

    def published(self) -> list[tuple[Record, int, str]]:
        """(record, its instant on the job's clock, name of its journal) of processes that publish models."""
        return [
            (record, int(record["t"]) + self.clocks.offset(boot_of(source.tail.head)), source.path.name)
            for source in self._publishers.values()
            for record in source.records
            if record["k"] == "publish"
        ]

    def agent_boots(self, attempt: str) -> dict[str, list[Record]]:
        """Boot -> records of its agents in one attempt."""
        found: dict[str, list[Record]] = {}
        for agent in self._agents.get(attempt, {}).values():
            found.setdefault(boot_of(agent.tail.head), []).extend(agent.records)
        return found

    def time(self, told: Told) -> int:
        """Instant of a supervisor's record on the job's clock."""
        return int(told[0]["t"]) + self.clocks.offset(told[1])

    def tails(self) -> list[JournalTail]:
        """All journals."""
        agents = [agent.tail for by_path in self._agents.values() for agent in by_path.values()]
        publishers = [source.tail for source in self._publishers.values()]
        return [self._supervisor.tail, *(process.tail for process in self.processes.values()), *agents, *publishers]

    def _read_supervisor(self) -> None:
        if not self.paths.supervisor_journal.exists():
            return
        records, problem = read_tail(self._supervisor)
        if problem:
            self.problems.append(problem)
        for record in records:
            if record["k"] == "head" and _has_clock(record):
                self._boot = boot_of(record)
                self.clocks.see(record)
            if self._boot is None or not isinstance(record.get("t"), int):
                self.bad_records += 1
            else:
                self.told.append((record, self._boot))

    def _read_attempts(self) -> None:
        for name in self.paths.attempt_names():
            folder = self.paths.attempt(name)
            with os.scandir(folder) as entries:
                files = sorted(entry.name for entry in entries if entry.name.endswith(".jsonl"))
            for file in files:
                path = folder / file
                if file.startswith("agent-"):
                    self._agents.setdefault(name, {}).setdefault(path, _Source(path))
                elif path not in self.processes:
                    self.processes[path] = Process(path, name)
        for by_path in self._agents.values():
            for agent in by_path.values():
                self._read_source(agent)

    def _read_publishers(self) -> None:
        for path in sorted(self.paths.publishes.glob("*.jsonl")):
            self._read_source(self._publishers.setdefault(path, _Source(path)))

    def _read_source(self, agent: _Source) -> None:
        records, problem = read_tail(agent)
        if problem:
            self.problems.append(problem)
        if agent.tail.head is not None:
            self.clocks.see(agent.tail.head)
        good = [record for record in records if isinstance(record.get("t"), int)]
        self.bad_records += len(records) - len(good)
        agent.records.extend(good)

    def _reference(self) -> str:
        """The boot whose clock is the job's: the first supervisor's, or without one the first process's."""
        if self.told:
            return self.told[0][1]
        heads = [process.head for process in self.processes.values() if process.builder is not None]
        return boot_of(min(heads, key=lambda head: (int(head["wall"]), boot_of(head))))

    def _shared(self) -> list[Shared]:
        shared: list[Shared] = []
        for process in self.processes.values():
            if process.builder is not None:
                instants = process.builder.shared_instants()
                shared.extend(((process.attempt, step), process.boot, t - process.builder.offset) for step, t in instants)
        return shared

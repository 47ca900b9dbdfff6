"""Opens a job's folder and tells what happened as a `JobHistory`; asked again, it reads only what is new.

It decides what the files mean together: which process was which rank, when each ended, how the hosts' clocks relate.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from statistics import median
from typing import Any, Final

from ettrain import clock
from ettrain.account.assemble import RankBuilder
from ettrain.account.history import AttemptHistory, JobHistory, RankHistory
from ettrain.beat import read_beat
from ettrain.errors import JobNotFoundError, JournalError
from ettrain.events import Record
from ettrain.jobpaths import JOB_NAME, JobPaths, attempt_key
from ettrain.journal import JournalTail

CLOCK_TOLERANCE_NS: Final = 10_000_000


def find_job(runs: Path, name: str | None) -> JobPaths:
    """The job of that name (or path), or the newest one.

    Raises:
        JobNotFoundError: there is none.
    """
    if name is not None and (Path(name) / "attempts").is_dir():
        return JobPaths(Path(name).resolve())
    known = sorted((path for path in runs.glob("*") if (path / "supervisor.jsonl").is_file() or (path / "attempts").is_dir()), key=_changed)
    if name is None and known:
        return JobPaths(known[-1])
    if name is not None and JOB_NAME.fullmatch(name) and runs / name in known:
        return JobPaths(runs / name)
    raise JobNotFoundError(name, str(runs), [path.name for path in reversed(known)])


def _changed(path: Path) -> float:
    journal = path / "supervisor.jsonl"
    return (journal if journal.exists() else path).stat().st_mtime


class _Process:
    """One rank's process: its journal, its beat page, its builder."""

    def __init__(self, path: Path, attempt: str) -> None:
        self.tail = JournalTail(path)
        self.attempt = attempt
        self.builder: RankBuilder | None = None
        self.records: list[Record] = []
        self.problem = ""

    @property
    def head(self) -> Record | None:
        """The journal's first record."""
        return self.tail.head


class JobReader:
    """Reads one job, again and again."""

    def __init__(self, paths: JobPaths) -> None:
        self.paths = paths
        self._supervisor = JournalTail(paths.supervisor_journal)
        self._records: list[Record] = []
        self._agents: dict[Path, JournalTail] = {}
        self._agent_records: dict[str, list[Record]] = {}
        self._processes: dict[Path, _Process] = {}
        self._offsets: dict[str, int] = {}
        self._corrections: dict[str, int] = {}
        self._problems: list[str] = []

    def read(self, now_wall_ns: int | None = None) -> JobHistory:
        """The job as its files tell it now.

        Args:
            now_wall_ns: the instant at which to look (epoch ns); the real one if None.
        Raises:
            JournalError: nothing in the folder can be read.
        """
        self._problems = []
        self._read_supervisor()
        self._read_attempts()
        self._fix_clocks()
        now = self._now(now_wall_ns)
        running = self._is_running()
        attempts = self._attempts(now, running=running)
        if not attempts and self._problems:
            raise JournalError(str(self.paths.root), "nothing in it can be read: " + "; ".join(self._problems), "See: ett doctor")
        return self._job(attempts, now, running=running)

    # ---- files

    def _read_supervisor(self) -> None:
        if not self.paths.supervisor_journal.exists():
            return
        try:
            self._records.extend(self._supervisor.read_new())
        except JournalError as error:
            self._problems.append(str(error))

    def _read_attempts(self) -> None:
        for name in self.paths.attempt_names():
            with os.scandir(self.paths.attempt(name)) as entries:
                files = sorted(entry.name for entry in entries if entry.name.endswith(".jsonl"))
            folder = self.paths.attempt(name)
            for file in files:
                path = folder / file
                if file.startswith("agent-"):
                    self._read_agent(path, name)
                elif path not in self._processes:
                    self._processes[path] = _Process(path, name)
        for process in self._processes.values():
            self._read_process(process)

    def _read_agent(self, path: Path, attempt: str) -> None:
        tail = self._agents.setdefault(path, JournalTail(path))
        try:
            self._agent_records.setdefault(attempt, []).extend(tail.read_new())
        except JournalError as error:
            self._problems.append(str(error))

    def _read_process(self, process: _Process) -> None:
        process.problem = ""
        try:
            records = process.tail.read_new()
        except JournalError as error:
            if process.tail.head is not None or error.why.startswith(("has schema", "cannot")) or process.tail.bad_lines:
                process.problem = str(error)
                self._problems.append(process.problem)
            return
        if process.head is None:
            return
        if process.builder is None:
            boot = str(process.head.get("boot", ""))
            offset = self._offset(boot, process.head) + self._corrections.get(boot, 0)
            process.builder = RankBuilder(process.head, offset)
        process.builder.feed(records)

    def _offset(self, boot: str, head: Record) -> int:
        """Job time minus monotonic time for one boot: from the first pair of clocks seen of it, so that steps change nothing."""
        if boot not in self._offsets:
            pairs = [r for r in self._records if r["k"] == "head" and r.get("boot") == boot]
            first = pairs[0] if pairs else head
            self._offsets[boot] = int(first["wall"]) - int(first["t"])
        return self._offsets[boot]

    # ---- clocks

    def _fix_clocks(self) -> None:
        """Where ranks of several hosts finished the same step together, their clocks are one: shift all to the first host's."""
        boots = {str(p.head.get("boot", "")) for p in self._processes.values() if p.head is not None}
        if len(boots) < 2:
            return
        wanted = self._estimate()
        changed = {boot for boot, ns in wanted.items() if abs(ns - self._corrections.get(boot, 0)) > CLOCK_TOLERANCE_NS}
        if not changed:
            return
        self._corrections.update({boot: wanted[boot] for boot in changed})
        for path, process in self._processes.items():
            if process.head is not None and str(process.head.get("boot", "")) in changed:
                again = _Process(path, process.attempt)
                self._processes[path] = again
                self._read_process(again)

    def _estimate(self) -> dict[str, int]:
        """Correction per boot, ns, relative to the uncorrected clocks: the median over instants that all ranks shared."""
        shared: dict[tuple[str, int], dict[str, list[int]]] = {}
        for process in self._processes.values():
            if process.builder is None or process.head is None:
                continue
            boot = str(process.head.get("boot", ""))
            for step, t in process.builder.shared_instants():
                raw = t - self._corrections.get(boot, 0)
                shared.setdefault((process.attempt, step), {}).setdefault(boot, []).append(raw)
        differences: dict[str, list[int]] = {}
        for by_boot in shared.values():
            if len(by_boot) < 2:
                continue
            reference = min(by_boot)
            for boot, times in by_boot.items():
                differences.setdefault(boot, []).append(int(median(by_boot[reference])) - int(median(times)))
        return {boot: int(median(values)) for boot, values in differences.items()}

    # ---- meaning

    def _time(self, record: Record, head: Record | None) -> int:
        boot = str((head or {}).get("boot", ""))
        return int(record["t"]) + self._offsets.get(boot, 0)

    def _now(self, now_wall_ns: int | None) -> int:
        """The reader's instant on the job's clock: through the monotonic clock where the job runs on this very boot."""
        boot = clock.boot_id()
        if now_wall_ns is not None:
            return now_wall_ns
        if boot in self._offsets:
            return clock.monotonic_ns() + self._offsets[boot]
        head = next((r for r in self._records if r["k"] == "head" and r.get("boot") == boot), None)
        if head is not None:
            return clock.monotonic_ns() + self._offset(boot, head)
        return clock.wall_pair()[0]

    def _is_running(self) -> bool:
        """Whether a supervisor that has not said goodbye is still there, as far as this host can tell."""
        heads = [record for record in self._records if record["k"] == "head"]
        if not heads or any(r["k"] == "bye" for r in self._since_last_head()):
            return False
        if heads[-1].get("boot") == clock.boot_id():
            start = clock.process_start_ns(int(heads[-1].get("pid", 0)))
            return start is not None and abs(start - int(heads[-1].get("start") or start)) < 1_000_000_000
        beat = read_beat(self.paths.supervisor_beat)
        path = self.paths.supervisor_beat
        return beat is not None and clock.wall_pair()[0] - path.stat().st_mtime_ns < 60_000_000_000

    def _since_last_head(self) -> list[Record]:
        for index in range(len(self._records) - 1, -1, -1):
            if self._records[index]["k"] == "head":
                return self._records[index:]
        return []

    def _attempts(self, now: int, *, running: bool) -> list[AttemptHistory]:
        launches = self._launches()
        names = sorted({*launches, *(process.attempt for process in self._processes.values())}, key=attempt_key)
        attempts = [self._attempt(name, launches.get(name), now) for name in names]
        self._close_open_ends(attempts, launches, now, running=running)
        for attempt in attempts:
            attempt.ranks = self._ranks_of(attempt, now, running=running and attempt is attempts[-1])
        attempts.sort(key=lambda attempt: (attempt.start, attempt_key(attempt.name)))
        _keep_apart(attempts)
        return attempts

    def _launches(self) -> dict[str, dict[str, Any]]:
        """Attempt name -> what the supervisor wrote about it, times on the job's clock."""
        launches: dict[str, dict[str, Any]] = {}
        head: Record | None = None
        for record in self._records:
            if record["k"] == "head":
                head = record
                self._offset(str(head.get("boot", "")), head)
            elif record["k"] in ("begin", "end", "gone") and isinstance(record.get("attempt"), str):
                entry = launches.setdefault(record["attempt"], {"gone": {}})
                timed = {**record, "t": self._time(record, head)}
                if record["k"] == "gone":
                    entry["gone"][int(record.get("pid", 0))] = timed
                else:
                    entry[record["k"]] = timed
        return {name: entry for name, entry in launches.items() if "begin" in entry}

    def _attempt(self, name: str, launch: dict[str, Any] | None, now: int) -> AttemptHistory:
        processes = [p for p in self._processes.values() if p.attempt == name and p.builder is not None]
        starts = [p.builder.start() for p in processes if p.builder is not None]
        if launch is None:
            return AttemptHistory(name=name, start=min(starts, default=now), end=None)
        end = launch.get("end", {})
        return AttemptHistory(
            name=name,
            start=launch["begin"]["t"],
            end=end.get("t"),
            code=end.get("code"),
            sent=tuple(end.get("sent") or ()),
            ended_by=str(end.get("reason") or ""),
            oom_kills=int(end.get("oom") or 0),
            text=str(end.get("text") or ""),
        )

    def _close_open_ends(self, attempts: list[AttemptHistory], launches: dict[str, dict[str, Any]], now: int, *, running: bool) -> None:
        """Give an end to what nobody ended: torchrun's own restarts within a launch, and attempts whose supervisor is gone."""
        for index, attempt in enumerate(attempts):
            launch_number = attempt_key(attempt.name)[0]
            last_of_launch = index + 1 == len(attempts) or attempt_key(attempts[index + 1].name)[0] != launch_number
            if not last_of_launch:
                after = attempts[index + 1]
                noticed = self._noticed(attempt.name)
                first_end = after.start if noticed is None else min(max(noticed, attempt.start), after.start)
                after.start = first_end
                after.end, after.code, after.sent = attempt.end, attempt.code, attempt.sent
                after.ended_by, after.oom_kills = attempt.ended_by, attempt.oom_kills
                attempt.end, attempt.code, attempt.sent, attempt.ended_by = first_end, None, (), ""
            elif attempt.end is None and not (running and index == len(attempts) - 1):
                self._close_lost(attempt, has_launch=attempt.name in launches)

    def _close_lost(self, attempt: AttemptHistory, *, has_launch: bool) -> None:
        seen = [p.builder.end_seen() for p in self._processes.values() if p.attempt == attempt.name and p.builder is not None]
        beats = [self._beat_end(p) for p in self._processes.values() if p.attempt == attempt.name]
        if has_launch:
            supervisor = read_beat(self.paths.supervisor_beat)
            head = self._records[0] if self._records else None
            if supervisor is not None and supervisor.pid == int((self._since_last_head() or [{}])[0].get("pid", -1)):
                seen.append(supervisor.active_t + self._offsets.get(str((head or {}).get("boot", "")), 0))
            attempt.lost = True
        attempt.end = max([attempt.start, *seen, *beats])
        if not has_launch:
            codes = [r.get("code") for r in self._agent_records.get(attempt.name, []) if r["k"] == "gone"]
            attempt.code = next((code for code in codes if code), 0 if self._all_exited(attempt.name) else None)

    def _all_exited(self, name: str) -> bool:
        histories = [p.builder.build(None, end=None, now=0) for p in self._processes.values() if p.attempt == name and p.builder is not None]
        return bool(histories) and all(history.exit_t is not None and history.error is None for history in histories)

    def _beat_end(self, process: _Process) -> int:
        beat = read_beat(process.tail.path.with_suffix(".beat"))
        if beat is None or process.builder is None:
            return 0
        return max(beat.active_t, beat.step_t) + process.builder.offset

    def _noticed(self, name: str) -> int | None:
        times = []
        for record in self._agent_records.get(name, []):
            if record["k"] == "noticed":
                boot = next((str(t.head.get("boot", "")) for t in self._agents.values() if t.head is not None and t.path.parent.name == name), "")
                times.append(int(record["t"]) + self._offsets.get(boot, 0))
        return min(times) if times else None

    def _ranks_of(self, attempt: AttemptHistory, now: int, *, running: bool) -> list[RankHistory]:
        gone = self._launches().get(attempt.name, {}).get("gone", {}) or self._launches().get(_launch_of(attempt.name), {}).get("gone", {})
        codes = {int(r.get("pid", 0)): r.get("code") for r in self._agent_records.get(attempt.name, []) if r["k"] == "gone"}
        ranks: list[RankHistory] = []
        for process in self._processes.values():
            if process.attempt != attempt.name or process.builder is None:
                continue
            beat = read_beat(process.tail.path.with_suffix(".beat"))
            pid = int((process.head or {}).get("pid", 0))
            rank = process.builder.build(beat, end=self._end_of(process, attempt, gone.get(pid), running=running), now=now)
            rank.code = codes.get(pid)
            if rank.code is None and pid in gone:
                rank.code = gone[pid].get("code")
            ranks.append(rank)
        return _one_per_rank(ranks)

    def _end_of(self, process: _Process, attempt: AttemptHistory, gone: Record | None, *, running: bool) -> int | None:
        """When a rank's process ended; None = it is alive."""
        if process.builder is None:
            return attempt.end
        limit = attempt.end
        if gone is not None:
            return int(gone["t"]) if limit is None else min(int(gone["t"]), limit)
        head = process.head or {}
        if running and head.get("boot") == clock.boot_id():
            start = clock.process_start_ns(int(head.get("pid", 0)))
            if start is not None and abs(start - int(head.get("start") or start)) < 1_000_000_000:
                return None
        elif running and limit is None:
            return None
        seen = max(process.builder.end_seen(), self._beat_end(process))
        return seen if limit is None or attempt.lost or process.builder.exited() else limit

    def _job(self, attempts: list[AttemptHistory], now: int, *, running: bool) -> JobHistory:
        asked = next((r for r in reversed(self._records) if r["k"] == "job"), {})
        tails = [process.tail for process in self._processes.values()]
        notes = [str(r["text"]) for r in self._records if r["k"] == "note"] + self._problems
        supports = asked.get("supports")
        correction = max((abs(ns) for ns in self._corrections.values()), default=0)
        if not isinstance(supports, list):
            supports = None
        return JobHistory(
            name=self.paths.name,
            attempts=attempts,
            now=now,
            running=running,
            submitted=int(asked["submitted"]) if asked.get("submitted") else None,
            command=tuple(str(word) for word in asked.get("command") or ()),
            devices_per_rank=int(asked.get("devices_per_rank") or 1),
            notes=list(dict.fromkeys(notes)),
            torn_lines=sum(t.bad_lines + t.torn for t in [self._supervisor, *tails]),
            journals=sum(tail.head is not None for tail in tails),
            clock_correction_ns=correction,
            supports=None if supports is None else tuple(map(str, supports)),
        )


def _launch_of(name: str) -> str:
    return re.sub(r"-r\d+$", "", name)


def _keep_apart(attempts: list[AttemptHistory]) -> None:
    """Attempts are disjoint: where a clock says otherwise (two hosts, two supervisors), the earlier one ends when the later begins."""
    for before, after in zip(attempts, attempts[1:], strict=False):
        if before.end is None or before.end > after.start:
            before.end = max(before.start, after.start)


def _one_per_rank(ranks: list[RankHistory]) -> list[RankHistory]:
    """Where several processes claim one rank, the one that trained (else the first) is the rank; unknown ranks take free numbers."""
    chosen: dict[int, RankHistory] = {}
    unknown: list[RankHistory] = []
    for rank in sorted(ranks, key=lambda rank: (-min(rank.steps, 1), rank.start, rank.pid)):
        if rank.rank < 0:
            unknown.append(rank)
        elif rank.rank not in chosen:
            chosen[rank.rank] = rank
    trained = [rank for rank in unknown if rank.steps] or ([] if chosen else unknown[:1])
    free = (number for number in range(len(ranks) + 1) if number not in chosen)
    for rank, number in zip(trained, free, strict=False):
        rank.rank = number
        chosen[number] = rank
    return [chosen[number] for number in sorted(chosen)]

"""Opens a job's folder and tells what happened as a `JobHistory`; asked again, it reads only what is new.

It decides what the files mean together: which process was which rank, when each ended, which attempt was which. `jobfiles` reads
them, `jobclocks` puts them on one clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from ettrain import clock
from ettrain.account.history import AttemptHistory, JobHistory, PublishEvent, RankHistory
from ettrain.account.publishes import publish_event_of
from ettrain.beat import read_beat
from ettrain.errors import JobNotFoundError, JournalError
from ettrain.events import Record
from ettrain.jobfiles import JobFiles, Process
from ettrain.jobpaths import JOB_NAME, JobPaths, attempt_key

_SILENT_NS: Final = 60_000_000_000
"""A supervisor of another host that gave no sign of life for so long is taken for gone."""
_SAME_START_NS: Final = 1_000_000_000
_START_TOLERANCE_NS: Final = 50_000_000
"""The kernel stamps the creation of a process in ticks of 10 ms, its end is seen as it happens."""


def find_job(runs: Path, name: str | None) -> JobPaths:
    """The job of that name (or path), or the newest one.

    Raises:
        JobNotFoundError: there is none.
    """
    if name is not None and _is_job(Path(name)):
        return JobPaths(Path(name).resolve())
    known = sorted((path for path in runs.glob("*") if JOB_NAME.fullmatch(path.name) and _is_job(path)), key=_changed)
    if name is None and known:
        return JobPaths(known[-1])
    if name is not None and JOB_NAME.fullmatch(name) and runs / name in known:
        return JobPaths(runs / name)
    raise JobNotFoundError(name, str(runs), [path.name for path in reversed(known)])


def _is_job(path: Path) -> bool:
    return (path / "supervisor.jsonl").is_file() or (path / "attempts").is_dir()


def _changed(path: Path) -> float:
    journal = path / "supervisor.jsonl"
    try:
        return (journal if journal.exists() else path).stat().st_mtime
    except OSError:
        return 0.0


@dataclass(slots=True)
class _Launch:
    """What the supervisor wrote about one attempt."""

    begin: int
    session: int
    """Which supervisor: number of its head."""
    end: int | None = None
    record: Record = field(default_factory=dict)
    """Its `end` record."""


@dataclass(frozen=True, slots=True)
class _Gone:
    """How a rank's process ended: when, and with which code where that is known."""

    t: int | None
    code: int | None


class JobReader:
    """Reads one job, again and again."""

    def __init__(self, paths: JobPaths) -> None:
        self.paths = paths
        self._files = JobFiles(paths)

    def read(self, now_wall_ns: int | None = None) -> JobHistory:
        """The job as its files tell it now.

        Args:
            now_wall_ns: the instant at which to look (epoch ns); the real one if None.
        Raises:
            JournalError: nothing in the folder can be read.
        """
        self._files.read()
        live_at = self._asked().get("live_at")
        now = live_at if isinstance(live_at, int) else self._now(now_wall_ns)
        running = isinstance(live_at, int) or self._is_running()
        attempts = self._attempts(now, running=running)
        if not attempts and self._files.problems:
            why = "nothing in it can be read: " + "; ".join(self._files.problems)
            raise JournalError(str(self.paths.root), why, "See: ett doctor")
        return self._job(attempts, now, running=running)

    # ---- the job as a whole

    def _told(self, kind: str) -> list[Record]:
        return [record for record, _ in self._files.told if record["k"] == kind]

    def _asked(self) -> Record:
        return next(iter(reversed(self._told("job"))), {})

    def _now(self, now_wall_ns: int | None) -> int:
        """The reader's instant on the job's clock: through the monotonic clock where the job runs on this very boot."""
        if now_wall_ns is not None:
            return now_wall_ns
        boot = clock.boot_id()
        if self._files.clocks.knows(boot):
            return clock.monotonic_ns() + self._files.clocks.offset(boot)
        return clock.wall_pair()[0]

    def _is_running(self) -> bool:
        """Whether a supervisor that has not said goodbye is still there, as far as this host can tell."""
        head: Record | None = None
        for record, _ in self._files.told:
            if record["k"] == "head":
                head = record
            elif record["k"] == "bye":
                head = None
        if head is None:
            return False
        if head.get("boot") == clock.boot_id():
            return _lives(head)
        beat, path = read_beat(self.paths.supervisor_beat), self.paths.supervisor_beat
        return beat is not None and clock.wall_pair()[0] - path.stat().st_mtime_ns < _SILENT_NS

    def _job(self, attempts: list[AttemptHistory], now: int, *, running: bool) -> JobHistory:
        asked, files = self._asked(), self._files
        notes = [str(record["text"]) for record in self._told("note") if record.get("text")] + files.problems
        supports, command = asked.get("supports"), asked.get("command")
        tails = files.tails()
        return JobHistory(
            name=self.paths.name,
            attempts=attempts,
            now=now,
            running=running,
            submitted=_natural(asked.get("submitted")) or None,
            command=tuple(map(str, command)) if isinstance(command, list) else (),
            devices_per_rank=_natural(asked.get("devices_per_rank")) or 1,
            publish_events=self._publish_events(),
            notes=list(dict.fromkeys(notes)),
            torn_lines=sum(tail.bad_lines + tail.torn for tail in tails) + files.bad_records,
            journals=sum(process.builder is not None for process in files.processes.values()),
            clock_correction_ns=files.clocks.largest_correction_ns,
            supports=tuple(map(str, supports)) if isinstance(supports, list) else None,
        )

    def _publish_events(self) -> list[PublishEvent]:
        events: list[PublishEvent] = []
        for record, t, process in self._files.published():
            try:
                events.append(publish_event_of(record, t, process))
            except (KeyError, ValueError):
                self._files.bad_records += 1
        return events

    # ---- attempts

    def _attempts(self, now: int, *, running: bool) -> list[AttemptHistory]:
        launches = self._launches()
        processes: dict[str, list[Process]] = {}
        for _, process in sorted(self._files.processes.items()):
            if process.builder is not None:
                processes.setdefault(process.attempt, []).append(process)
        names = sorted({*launches, *processes}, key=attempt_key)
        attempts = [_attempt(name, launches.get(name), processes.get(name, []), now) for name in names]
        for index, attempt in enumerate(attempts):
            launch = launches.get(_launch_of(attempt.name))
            if index + 1 < len(attempts) and _launch_of(attempts[index + 1].name) == _launch_of(attempt.name):
                self._hand_over(attempt, attempts[index + 1])
            elif attempt.end is None and not (running and index + 1 == len(attempts)):
                self._close_lost(attempt, launch, processes.get(attempt.name, []))
        gone = self._gone(attempts)
        for attempt in attempts:
            told = [t for record, t in self._files.agents_of(attempt.name) if record["k"] == "gone" and _code(record)]
            attempt.failed_t = min(told, default=None)
        parts: list[AttemptHistory] = []
        for index, attempt in enumerate(attempts):
            live = running and index + 1 == len(attempts) and attempt.end is None
            parts.extend(_in_sequence(attempt, [_rank(p, attempt, gone, now, live=live) for p in processes.get(attempt.name, [])]))
        attempts = parts
        attempts.sort(key=lambda attempt: (attempt.start, attempt_key(attempt.name)))
        _keep_apart(attempts)
        return attempts

    def _launches(self) -> dict[str, _Launch]:
        """Attempt name -> what the supervisor wrote about it."""
        launches: dict[str, _Launch] = {}
        session = 0
        for record, boot in self._files.told:
            name = record.get("attempt")
            session += record["k"] == "head"
            if not isinstance(name, str):
                continue
            t = self._files.time((record, boot))
            if record["k"] == "begin":
                launches[name] = _Launch(begin=t, session=session)
            elif record["k"] == "end" and name in launches:
                launches[name].end, launches[name].record = t, record
        return launches

    def _gone(self, attempts: Iterable[AttemptHistory]) -> dict[tuple[str, str, int], _Gone]:
        """(attempt, boot, pid) -> how the process ended: the supervisor saw when, torchrun's agent with which code."""
        gone: dict[tuple[str, str, int], _Gone] = {}
        for attempt in attempts:
            for boot, records in self._files.agent_boots(attempt.name).items():
                offset = self._files.clocks.offset(boot)
                for record in records:
                    if record["k"] == "gone":
                        gone[attempt.name, boot, _natural(record.get("pid"))] = _Gone(record["t"] + offset, _code(record))
        for record, boot in self._files.told:
            if record["k"] == "gone" and isinstance(record.get("attempt"), str):
                key = (record["attempt"], boot, _natural(record.get("pid")))
                known = gone.get(key)
                code = known.code if known is not None and known.code is not None else _code(record)
                gone[key] = _Gone(self._files.time((record, boot)), code)
        return gone

    def _hand_over(self, attempt: AttemptHistory, after: AttemptHistory) -> None:
        """torchrun restarted its workers: `after` begins when its agent noticed, and takes over the launch's end."""
        noticed = [t for record, t in self._files.agents_of(attempt.name) if record["k"] == "noticed"]
        first = min([max(min(noticed, default=after.start), attempt.start), after.start])
        after.start, after.end, after.code, after.sent = first, attempt.end, attempt.code, attempt.sent
        after.ended_by, after.oom_kills, after.told_class = attempt.ended_by, attempt.oom_kills, attempt.told_class
        after.text = attempt.text
        attempt.end, attempt.code, attempt.sent, attempt.ended_by = first, None, (), ""
        attempt.oom_kills, attempt.told_class, attempt.text = 0, "", ""

    def _close_lost(self, attempt: AttemptHistory, launch: _Launch | None, processes: list[Process]) -> None:
        """Nobody ended it: it ends with the last sign of life."""
        seen = [process.last_seen() for process in processes]
        if launch is None:
            codes = [_code(record) for record, _ in self._files.agents_of(attempt.name) if record["k"] == "gone"]
            well = bool(processes) and all(p.builder is not None and p.builder.ended_well() for p in processes)
            attempt.code = next((code for code in codes if code), 0 if well else None)
        else:
            attempt.lost = True
            heads = [told for told in self._files.told if told[0]["k"] == "head"]
            beat = read_beat(self.paths.supervisor_beat)
            if launch.session == len(heads) and beat is not None and beat.active_t and beat.pid == heads[-1][0].get("pid"):
                seen.append(beat.active_t + self._files.clocks.offset(heads[-1][1]))
        attempt.end = max([attempt.start, *seen])


def _attempt(name: str, launch: _Launch | None, processes: list[Process], now: int) -> AttemptHistory:
    if launch is None:
        starts = [process.builder.start() for process in processes if process.builder is not None]
        return AttemptHistory(name=name, start=min(starts, default=now), end=None)
    end = launch.record
    sent = end.get("sent")
    return AttemptHistory(
        name=name,
        start=launch.begin,
        end=launch.end,
        code=_code(end),
        sent=tuple(map(str, sent)) if isinstance(sent, list) else (),
        ended_by=str(end.get("reason") or ""),
        oom_kills=_natural(end.get("oom")),
        text=str(end.get("text") or ""),
        told_class=str(end.get("class") or ""),
    )


def _rank(process: Process, attempt: AttemptHistory, gone: dict[tuple[str, str, int], _Gone], now: int, *, live: bool) -> RankHistory:
    if process.builder is None:
        raise AssertionError(process.path)
    how = gone.get((attempt.name, process.boot, process.pid))
    rank = process.builder.build(process.beat(), end=_end_of(process, attempt, how, live=live), now=now)
    rank.code = how.code if how is not None else None
    return rank


def _end_of(process: Process, attempt: AttemptHistory, how: _Gone | None, *, live: bool) -> int | None:
    """When a rank's process ended; None = it is alive."""
    limit = attempt.end
    if how is not None and how.t is not None:
        return how.t if limit is None else min(how.t, limit)
    if live and (process.boot != clock.boot_id() or _lives(process.head)):
        return None
    seen = process.last_seen()
    well = process.builder is not None and process.builder.exited()
    return seen if limit is None or attempt.lost or well else limit


def _lives(head: Record) -> bool:
    """Whether the process that wrote this head on this boot is still there, and not another one with its number."""
    start = clock.process_start_ns(_natural(head.get("pid")))
    told = head.get("start")
    return start is not None and abs(start - (told if isinstance(told, int) else start)) < _SAME_START_NS


def _natural(value: object) -> int:
    """A count or an instant as read from a file: 0 where it is none."""
    return value if isinstance(value, int) and value > 0 else 0


def _code(record: Record) -> int | None:
    code = record.get("code")
    return code if isinstance(code, int) else None


def _launch_of(name: str) -> str:
    return re.sub(r"-r\d+$", "", name)


def _keep_apart(attempts: list[AttemptHistory]) -> None:
    """Attempts are disjoint: where a clock says otherwise (two hosts, two supervisors), the earlier one ends when the later begins."""
    for before, after in pairwise(attempts):
        if before.end is None or before.end > after.start:
            before.end = max(before.start, after.start)


def _comes_again(rank: RankHistory, wave: list[RankHistory]) -> bool:
    """Whether a process runs where others have trained or died before it."""
    over = all(other.end <= rank.start + _START_TOLERANCE_NS and not other.alive for other in wave)
    return (
        over and any(rank.rank < 0 or other.rank in (rank.rank, -1) for other in wave) and any(other.steps or other.died for other in wave)
    )


def _in_sequence(attempt: AttemptHistory, ranks: list[RankHistory]) -> list[AttemptHistory]:
    """A script that trains twice, or starts its program again by itself: ranks that come again after all have ended are attempts too."""
    waves: list[list[RankHistory]] = [[]]
    for rank in sorted(ranks, key=lambda rank: (rank.start, rank.pid)):
        if _comes_again(rank, waves[-1]):
            waves.append([])
        waves[-1].append(rank)
    parts: list[AttemptHistory] = []
    for number, wave in enumerate(waves):
        part = replace(attempt, name=attempt.name if not number else f"{attempt.name}.{number}", ranks=_one_per_rank(wave))
        if number:
            part.start = parts[-1].end or part.start
            part.continues = parts[-1].code == 0
        if number + 1 < len(waves):
            part.end = max(rank.end for rank in wave)
            part.code = None if any(rank.died for rank in wave) else 0
            part.sent, part.ended_by, part.told_class, part.text, part.oom_kills = (), "", "", "", 0
        parts.append(part)
    return parts


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

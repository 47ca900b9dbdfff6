"""`ett run`: start the command, record its attempts, start it again when it fails.

Each attempt gets a fresh launcher in a session of its own; whatever descends from it is ended before the next begins. The
program's output, input and exit code pass through untouched. Where the job's folder cannot be written, the command still
runs, unrecorded, with one warning: a measurement must not cost anybody their training.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import MutableSequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

from ettrain import clock
from ettrain import events as e
from ettrain._version import VERSION
from ettrain.beat import memory_beat, open_beat, read_beat
from ettrain.events import Record
from ettrain.jobpaths import JobPaths, attempt_key, attempt_name
from ettrain.journal import JournalWriter
from ettrain.settings import ENV_ATTEMPT, ENV_HOME, ENV_JOB_DIR, ENV_SUPERVISOR
from ettrain.supervise import processes

POLL_S: Final = 0.05
LEFTOVER_GRACE_S: Final = 5.0
PASSED_ON: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
STOPPING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What was asked."""

    command: tuple[str, ...]
    paths: JobPaths
    restarts: int
    restart_delay_s: float
    hang_timeout_s: float
    grace_s: float
    devices_per_rank: int
    submitted_ns: int | None = None
    labels: dict[str, str] = field(default_factory=dict)
    explain_startup: bool = False


@dataclass(slots=True)
class Outcome:
    """How `run` ended."""

    code: int
    attempts: int
    recorded: bool
    ranks_seen: int


class _Recording:
    """The supervisor's journal and sign of life; where they cannot be had it records nothing and says so once."""

    def __init__(self, paths: JobPaths) -> None:
        self.writer: JournalWriter | None = None
        self.beat: MutableSequence[int] = memory_beat()
        try:
            paths.attempts.mkdir(parents=True, exist_ok=True)
            self.writer = JournalWriter(paths.supervisor_journal)
            self.beat = open_beat(paths.supervisor_beat, os.getpid())
        except OSError as error:
            self._lost(error)

    def write(self, record: Record) -> None:
        """Append a record, if there is anywhere to."""
        if self.writer is None:
            return
        try:
            self.writer.write(record)
        except OSError as error:
            self._lost(error)

    def alive(self) -> None:
        """Leave a sign of life."""
        self.beat[e.B_ACTIVE_T] = clock.monotonic_ns()

    def _lost(self, error: OSError) -> None:
        self.writer = None
        print(f"ettrain: cannot record ({error.strerror}: {error.filename or 'journal'}); the command runs all the same", file=sys.stderr)


class Supervisor:
    """Runs one plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.recording = _Recording(plan.paths)
        self.sent: list[str] = []
        self.ranks_seen = 0
        self._child: subprocess.Popen[bytes] | None = None
        self._hung = False

    def run(self) -> Outcome:
        """Run until the command succeeds, the restarts are used up, or somebody says stop."""
        processes.adopt_orphans()
        self._open_job()
        before = {number: signal.signal(number, self._on_signal) for number in PASSED_ON}
        number = self._next_launch()
        attempts = 0
        try:
            while True:
                code = self._attempt(number + attempts)
                attempts += 1
                if code == 0 or self.sent or attempts > self.plan.restarts:
                    return Outcome(code, attempts, self.recording.writer is not None, self.ranks_seen)
                print(f"ettrain: attempt {attempts - 1} {_in_words(code)}; restart {attempts} of {self.plan.restarts}", file=sys.stderr)
                clock.sleep_s(self.plan.restart_delay_s)
        finally:
            self.recording.write({"k": "bye", "t": clock.monotonic_ns()})
            for signum, handler in before.items():
                signal.signal(signum, handler)

    # ---- the job

    def _open_job(self) -> None:
        plan = self.plan
        wall, t = clock.wall_pair()
        head = {
            "k": "head", "schema": e.SCHEMA, "t": t, "wall": wall, "boot": clock.boot_id(), "host": os.uname().nodename,
            "pid": os.getpid(), "role": "supervisor", "start": clock.process_start_ns(os.getpid()), "ettrain": VERSION,
        }  # fmt: skip
        asked: Record = {
            "command": list(plan.command), "devices_per_rank": plan.devices_per_rank, "labels": plan.labels,
            "submitted": plan.submitted_ns, "restarts": plan.restarts, "cwd": os.getcwd(),
        }  # fmt: skip
        self.recording.write(head)
        self.recording.write({"k": "job", "t": t, **asked})
        if self.recording.writer is not None:
            with contextlib.suppress(OSError):
                plan.paths.job_file.write_text(json.dumps({"job": plan.paths.name, **asked}, indent=1) + "\n", encoding="utf-8")

    def _next_launch(self) -> int:
        names = self.plan.paths.attempt_names()
        return attempt_key(names[-1])[0] + 1 if names else 0

    def _environment(self, number: int) -> dict[str, str]:
        home = Path(__file__).resolve().parent.parent
        inject = str(home / "record" / "inject")
        environment = dict(os.environ)
        path = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = inject + (os.pathsep + path if path else "")
        environment[ENV_JOB_DIR] = str(self.plan.paths.root)
        environment[ENV_ATTEMPT] = str(number)
        environment[ENV_SUPERVISOR] = str(os.getpid())
        environment[ENV_HOME] = str(home)
        environment["ETT_DEVICES_PER_RANK"] = str(self.plan.devices_per_rank)
        if self.plan.explain_startup:
            environment["ETT_EXPLAIN_STARTUP"] = "1"
        return environment

    # ---- one attempt

    def _attempt(self, number: int) -> int:
        name = attempt_name(number)
        oom_before = processes.oom_kills()
        recorded = self.recording.writer is not None
        if recorded:
            with contextlib.suppress(OSError):
                self.plan.paths.attempt(name).mkdir(exist_ok=True)
        self.recording.write({"k": "begin", "t": clock.monotonic_ns(), "attempt": name, "launch": number})
        try:
            environment = self._environment(number) if recorded else None
            child = subprocess.Popen(self.plan.command, env=environment, start_new_session=True)
        except OSError as error:
            text = f"cannot start {self.plan.command[0]!r}: {error.strerror}"
            self.recording.write({"k": "end", "t": clock.monotonic_ns(), "attempt": name, "code": 127, "text": text})
            print(f"ettrain: {text}", file=sys.stderr)
            return 127
        self._child, self._hung = child, False
        watch = _Watch(self.plan.paths.attempt(name), name, self.recording)
        code = self._follow(child, watch)
        self._child = None
        processes.end_all(os.getpid(), LEFTOVER_GRACE_S)
        watch.finish()
        self.ranks_seen += watch.ranks
        end: Record = {"k": "end", "t": clock.monotonic_ns(), "attempt": name, "code": code, "sent": self.sent}
        end["oom"] = max(0, processes.oom_kills() - oom_before)
        if self._hung:
            end["reason"] = "hang"
        self.recording.write(end)
        return code

    def _follow(self, child: subprocess.Popen[bytes], watch: _Watch) -> int:
        """Wait for the launcher; meanwhile note the ranks' ends and look for a hang."""
        while True:
            code = child.poll()
            if code is not None:
                return code
            watch.wait(child.pid)
            self.recording.alive()
            if self.plan.hang_timeout_s and not self._hung and watch.silent_ns() > self.plan.hang_timeout_s * 1e9:
                self._hung = True
                print(f"ettrain: no rank made progress for {self.plan.hang_timeout_s:g} s; ending the attempt", file=sys.stderr)
                processes.end_all(os.getpid(), self.plan.grace_s)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        again = name in self.sent
        if number in STOPPING:
            self.sent.append(name)
        self.recording.write({"k": "signal", "t": clock.monotonic_ns(), "name": name})
        child = self._child
        if child is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL if again and number == signal.SIGINT else number)


class _Watch:
    """The ranks' processes of one attempt on this host: found by their journals, followed through pidfds."""

    def __init__(self, folder: Path, attempt: str, recording: _Recording) -> None:
        self._parent = folder.parent
        self._launch = attempt_key(attempt)[0]
        self._recording = recording
        self._known: set[str] = set()
        self._pids: dict[int, tuple[int, str]] = {}
        self._beats: dict[str, Path] = {}
        self._poll = select.poll()
        self._boot = clock.boot_id()
        self.ranks = 0

    def wait(self, child: int) -> None:
        """Sleep a moment, less if a rank's process ends; note the ends."""
        self._look()
        for fd, _ in self._poll.poll(int(POLL_S * 1000)):
            self._gone(fd)

    def finish(self) -> None:
        """Note what ended since, and let go."""
        self._look()
        codes = processes.reap()
        for fd, _ in self._poll.poll(0):
            self._gone(fd, codes)
        for fd in list(self._pids):
            os.close(fd)
        self._pids.clear()

    def silent_ns(self) -> int:
        """For how long no rank has shown life, once at least one has finished a step; 0 before."""
        beats = [beat for path in self._beats.values() if (beat := read_beat(path)) is not None]
        if not any(beat.step for beat in beats):
            return 0
        return clock.monotonic_ns() - max(max(beat.active_t, beat.step_t, *(t for _, t in beat.stack), 0) for beat in beats)

    def _gone(self, fd: int, codes: dict[int, int] | None = None) -> None:
        t = clock.monotonic_ns()
        pid, attempt = self._pids.pop(fd)
        self._poll.unregister(fd)
        os.close(fd)
        record: Record = {"k": "gone", "t": t, "pid": pid, "attempt": attempt}
        code = (codes or {}).get(pid)
        if code is not None:
            record["code"] = code
        self._recording.write(record)

    def _look(self) -> None:
        for attempt in self._folders():
            try:
                entries = [entry for entry in os.scandir(self._parent / attempt) if entry.name.startswith("rank-") and entry.name.endswith(".jsonl")]
            except OSError:
                continue
            for entry in entries:
                key = f"{attempt}/{entry.name}"
                if key not in self._known:
                    self._meet(key, Path(entry.path), attempt)

    def _folders(self) -> list[str]:
        try:
            return [name for name in os.listdir(self._parent) if attempt_key(name)[0] == self._launch]
        except OSError:
            return []

    def _meet(self, key: str, path: Path, attempt: str) -> None:
        head = _head_of(path)
        if head is None:
            return
        self._known.add(key)
        self.ranks += 1
        if head.get("boot") != self._boot:
            return
        self._beats[key] = path.with_suffix(".beat")
        pid = int(head.get("pid", 0))
        fd = processes.open_pidfd(pid)
        if fd is None:
            self._recording.write({"k": "gone", "t": clock.monotonic_ns(), "pid": pid, "attempt": attempt})
            return
        self._pids[fd] = (pid, attempt)
        self._poll.register(fd, select.POLLIN)


def _head_of(path: Path) -> dict[str, Any] | None:
    try:
        with path.open("rb") as file:
            line = file.readline(e.MAX_LINE + 1)
    except OSError:
        return None
    return e.decode(line) if line.endswith(b"\n") else None


def _in_words(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"

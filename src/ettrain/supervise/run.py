"""`ett run`: start the command, record its attempts, start it again when it fails.

Each attempt gets a fresh launcher in a session of its own; whatever descends from it is ended before the next begins. The
program's output, input and exit code pass through untouched. Where the job's folder cannot be written, the command still
runs, unrecorded, with one warning: a measurement must not cost anybody their training.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

from ettrain import clock
from ettrain.events import Record
from ettrain.jobpaths import JobPaths, attempt_name
from ettrain.settings import ENV_ATTEMPT, ENV_HOME, ENV_JOB_DIR, ENV_SUPERVISOR, end_time_s
from ettrain.supervise import processes
from ettrain.supervise.recording import Recording, next_launch, tell
from ettrain.supervise.watch import Watch

LEFTOVER_GRACE_S: Final = 5.0
"""What the launcher leaves behind gets so long between SIGTERM and SIGKILL."""
ENDING_POLL_S: Final = 0.05
LAST_ATTEMPT_S: Final = 30.0
"""Nothing is started again when so little is left until the time limit."""
OWN_START_NS: Final = 10_000_000_000
"""The time since this process began is billed to the job, unless it was something else before (`exec ett run` in a shell)."""
PASSED_ON: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
STOPPING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
TO_THE_GROUP: Final = (signal.SIGINT, signal.SIGHUP, signal.SIGKILL)
"""What a terminal sends to a whole process group goes to the launcher's; other signals to the launcher alone, as if sent to it."""
NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""A shell's exit codes for a command that cannot be started."""


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
    environment: Callable[[], Mapping[str, str]] = dict
    """Asked before each attempt for what the command's environment gets on top: an attempt may learn from the one before."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How `Supervisor.run` ended."""

    code: int
    """The command's last exit code, negative for a signal."""
    attempts: int
    recorded: bool
    ranks_seen: int
    """Ranks' processes that a recorder entered."""
    started: bool
    """Whether the command could be started at all."""


def recorder_environment(paths: JobPaths, launch: int, supervisor: int, environment: dict[str, str]) -> dict[str, str]:
    """What a process needs on top of `environment`, so that the recorder enters it and those below it."""
    home = Path(__file__).resolve().parent.parent
    inject, path = str(home / "record" / "inject"), environment.get("PYTHONPATH")
    return {
        "PYTHONPATH": inject + (os.pathsep + path if path else ""),
        ENV_JOB_DIR: str(paths.root),
        ENV_ATTEMPT: str(launch),
        ENV_SUPERVISOR: str(supervisor),
        ENV_HOME: str(home),
    }


def working_folder() -> str:
    """Where the command runs; '' where somebody removed that folder."""
    with contextlib.suppress(OSError):
        return os.getcwd()
    return ""


class Supervisor:
    """Runs one plan.

    Raises:
        UsageError: another supervisor runs this job.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.recording = Recording(plan.paths)
        self._sent: list[str] = []
        self._to_pass_on: deque[int] = deque()
        self._kill = False
        self._ranks_seen = 0
        self._begun = False
        self._child = 0
        self._codes: dict[int, int] = {}

    def run(self) -> Outcome:
        """Run until the command succeeds, the restarts are used up, it cannot be started, or somebody says stop."""
        processes.adopt_orphans()
        plan = self.plan
        self.recording.open_job({
            "command": list(plan.command), "devices_per_rank": plan.devices_per_rank, "labels": plan.labels,
            "submitted": plan.submitted_ns, "restarts": plan.restarts, "cwd": working_folder(),
        })  # fmt: skip
        ours = [number for number in PASSED_ON if signal.getsignal(number) != signal.SIG_IGN]  # nohup's wish counts
        before = {number: signal.signal(number, self._on_signal) for number in ours}
        first = next_launch(plan.paths)
        attempts = 0
        try:
            while True:
                began = _own_start() if not attempts else clock.monotonic_ns()
                code, started = self._attempt(first + attempts, began)
                attempts += 1
                if code == 0 or not started or self._sent or attempts > plan.restarts or _time_is_up():
                    break
                tell(f"attempt {attempts - 1} {_in_words(code)}; restart {attempts} of {plan.restarts}")
                self._pause()
                if self._sent:
                    break
            return Outcome(code, attempts, self.recording.on, self._ranks_seen, started)
        finally:
            self.recording.close()
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    # ---- one attempt

    def _attempt(self, number: int, began: int) -> tuple[int, bool]:
        """(exit code, whether the command could be started)."""
        plan, recording, name = self.plan, self.recording, attempt_name(number)
        oom_before = processes.oom_kills()
        recording.make_attempt(name)
        recording.write({"k": "begin", "t": began, "attempt": name, "launch": number})
        self._begun = True
        try:
            child = subprocess.Popen(plan.command, env=self._environment(number), start_new_session=True, close_fds=False)
        except (OSError, ValueError) as error:
            code = NOT_FOUND if getattr(error, "errno", None) in (errno.ENOENT, errno.ENOTDIR) else NOT_EXECUTABLE
            text = f"cannot start {plan.command[0]!r}: {getattr(error, 'strerror', None) or error}"
            recording.write({"k": "end", "t": clock.monotonic_ns(), "attempt": name, "code": code, "text": text})
            tell(text)
            return code, False
        self._codes.clear()
        watch = Watch(plan.paths, number, recording.write, self._codes)
        watch.also(processes.open_pidfd(child.pid))
        code, hung = self._follow(child.pid, watch)
        child.returncode = code  # it was reaped here, together with what it left behind
        watch.finish()
        self._ranks_seen += watch.ranks
        end: Record = {"k": "end", "t": clock.monotonic_ns(), "attempt": name, "code": code, "sent": self._sent}
        end["oom"] = max(0, processes.oom_kills() - oom_before)
        if hung:
            end["reason"] = "hang"
        recording.write(end)
        return code, True

    def _environment(self, number: int) -> dict[str, str] | None:
        """The command's environment; None = as it is."""
        if not self.recording.on:
            return None
        environment = dict(os.environ)
        environment.update(recorder_environment(self.plan.paths, number, os.getpid(), environment))
        environment["ETT_DEVICES_PER_RANK"] = str(self.plan.devices_per_rank)
        if self.plan.explain_startup:
            environment["ETT_EXPLAIN_STARTUP"] = "1"
        environment.update(self.plan.environment())
        return environment

    def _follow(self, child: int, watch: Watch) -> tuple[int, bool]:
        """(launcher's exit code, whether it hung): watch until nothing of the attempt is left; note the ranks' ends."""
        plan, self._child = self.plan, child
        self._pass_on()
        ending: processes.Ending | None = None
        hung = False
        while ending is None or not ending.finished():
            watch.wait(ENDING_POLL_S if ending is not None else 1.0)
            self.recording.alive()
            self._codes.update(processes.reap())
            if self._kill and ending is not None:
                ending.hurry()
            if ending is not None:
                continue
            if child in self._codes or self._kill:
                ending = processes.Ending(0.0 if self._kill else plan.grace_s if self._sent else LEFTOVER_GRACE_S)
            elif plan.hang_timeout_s and watch.hangs(int(plan.hang_timeout_s * 1e9)):
                hung = True
                self.recording.write({"k": "noticed", "t": clock.monotonic_ns()})
                tell(f"no rank made progress for {plan.hang_timeout_s:g} s; ending the attempt")
                ending = processes.Ending(plan.grace_s)
        self._begun, self._child = False, 0
        self._to_pass_on.clear()
        if ending.survivors:
            tell(f"process(es) {', '.join(map(str, ending.survivors))} cannot be ended: stuck in the kernel (device or disk?)")
        self._codes.update(processes.reap())
        code = self._codes.get(child, -signal.SIGKILL)
        return -signal.SIGTERM if hung and code == 0 else code, hung

    # ---- signals

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if number == signal.SIGINT and name in self._sent:
            self._kill = True
        if number in STOPPING:
            self._sent.append(name)
        self.recording.write({"k": "signal", "t": clock.monotonic_ns(), "name": name})
        if self._begun or number in STOPPING:
            self._to_pass_on.append(signal.SIGKILL if self._kill else number)
        self._pass_on()

    def _pass_on(self) -> None:
        """Send what is to be passed on, once the launcher is there; a signal that comes meanwhile is sent once all the same."""
        while self._child and self._to_pass_on:
            with contextlib.suppress(IndexError, ProcessLookupError, PermissionError):
                number = self._to_pass_on.popleft()
                if self._child not in self._codes:
                    (os.killpg if number in TO_THE_GROUP else os.kill)(self._child, number)

    def _pause(self) -> None:
        """The pause before a restart, cut short by a signal to stop."""
        until = clock.monotonic_ns() + int(self.plan.restart_delay_s * 1e9)
        while not self._sent and (left := until - clock.monotonic_ns()) > 0:
            self.recording.alive()
            clock.sleep_s(min(left / 1e9, ENDING_POLL_S))


def _own_start() -> int:
    now = clock.monotonic_ns()
    start = clock.process_start_ns(os.getpid())
    return start if start is not None and now - OWN_START_NS < start <= now else now


def _time_is_up() -> bool:
    """Whether the hardware is about to be taken away, so that another attempt could not train."""
    left_s = end_time_s() - clock.wall_pair()[0] / 1e9
    if not 0 < left_s < LAST_ATTEMPT_S:
        return False
    tell(f"{left_s:.0f} s are left until the time limit: not started again")
    return True


def _in_words(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"

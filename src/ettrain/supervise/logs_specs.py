"""`torchrun --logs-specs ettrain ... train.py`: a job recorded without `ett run`, for whoever may not wrap the launcher.

torchrun loads this class through its own plug-in point and calls `reify` before each start of its workers: the one place
where their environment can be added to. Log files are those of torch's default. Each torchrun is a launch of the job, each of its
restarts an attempt. A thread in torchrun's process notes how the workers end.

The job is ETT_JOB in the folder ETT_RUNS; without a name, the rendezvous id if somebody chose one, else program and time. Under
`ett run` there is a supervisor already: then only the environment is mended. A fault of ours is told once, and torchrun goes on.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import sys
import threading
from pathlib import Path
from typing import Any, Final

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest, LogsSpecs, SignalException

from ettrain import clock
from ettrain import events as e
from ettrain._version import VERSION
from ettrain.errors import EttrainError, UsageError
from ettrain.events import Record
from ettrain.jobpaths import JOB_NAME, JobPaths, attempt_name
from ettrain.journal import JournalTail, JournalWriter
from ettrain.settings import ENV_ATTEMPT, ENV_JOB_DIR, value_of
from ettrain.supervise.recording import Recording, job_name_for, next_launch, tell
from ettrain.supervise.run import recorder_environment, working_folder
from ettrain.supervise.watch import Watch

_NO_ID: Final = re.compile(r"none|\d*|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""Rendezvous ids that name no job: torchrun's defaults."""
_LEADER_S: Final = 5.0
"""How long a further node waits for the first one to say which attempt this is."""
_WATCH_S: Final = 0.25

Environments = dict[int, dict[str, str]]
"""Local rank -> what torchrun adds to that worker's environment."""


class RecordingLogsSpecs(LogsSpecs):  # type: ignore[misc, unused-ignore]
    """torch's default log files, and the recorder in every worker. Arguments as for `DefaultLogsSpecs`."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._default = DefaultLogsSpecs(*arguments, **named)
        self._agent: _Agent | None = None
        self._off = False

    @property
    def root_log_dir(self) -> str:
        """Folder of the log files."""
        return str(self._default.root_log_dir)

    def __getattr__(self, name: str) -> Any:
        if name == "_default":
            raise AttributeError(name)
        return getattr(self._default, name)

    def reify(self, envs: Environments) -> LogsDest:
        """Called before each start of the workers: where their logs go, and their environment."""
        destination = self._default.reify(envs)
        if not self._off:
            try:
                self._record(envs)
            except EttrainError as error:
                self._give_up(envs, str(error))
            except Exception as error:  # noqa: BLE001 - torchrun and the training must go on, whatever is wrong with us
                self._give_up(envs, repr(error))
        return destination

    def _record(self, envs: Environments) -> None:
        if not envs:
            return
        if ENV_JOB_DIR in os.environ:
            _mend(envs)
            return
        first = next(iter(envs.values()))
        if self._agent is None:
            self._agent = _Agent(first)
        self._agent.starting(envs, int(first.get("TORCHELASTIC_RESTART_COUNT", "0")))

    def _give_up(self, envs: Environments, why: str) -> None:
        self._off = True
        tell(f"this job is not recorded: {why}")
        for environment in envs.values():
            for name in (ENV_JOB_DIR, ENV_ATTEMPT):
                environment.pop(name, None)


def _mend(envs: Environments) -> None:
    """Under `ett run`: where somebody overwrote PYTHONPATH on the way to torchrun, put the recorder back."""
    if "_ettrain_boot" in sys.modules:
        return
    paths = JobPaths(Path(os.environ[ENV_JOB_DIR]))
    added = recorder_environment(paths, 0, 0, dict(os.environ))
    for environment in envs.values():
        environment["PYTHONPATH"] = added["PYTHONPATH"]


class _Agent:
    """The recording of one torchrun.

    Attributes:
        launch: number of this torchrun in the job.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        runs = Path(str(value_of("runs"))).absolute()
        self.paths = JobPaths(runs / _job_name(environment))
        self.leads = environment.get("GROUP_RANK", "0") == "0"
        self._recording: Recording | None = None
        self._journals: dict[str, JournalWriter] = {}
        self._restart = -1
        self._over = threading.Event()
        if self.leads:
            self._recording = Recording(self.paths)
            self.launch = next_launch(self.paths)
            self._begin()
        else:
            self.launch = _launch_of_leader(self.paths)
        self.watch = Watch(self.paths, self.launch, self._write, {})
        ended, self._ending = os.pipe()
        self.watch.also(ended)
        self._thread = threading.Thread(target=self._run, name="ettrain-watch", daemon=True)
        self._thread.start()
        atexit.register(self._end)

    def starting(self, envs: Environments, restart: int) -> None:
        """The workers are about to be started, for the `restart`-th time."""
        if self._restart >= 0 and restart > self._restart:
            attempt = attempt_name(self.launch, self._restart)
            last = self.watch.last_gone.get(attempt, clock.monotonic_ns())
            self._write_beside(attempt, {"k": "noticed", "t": last})  # torchrun ends all workers before it starts them again
        self._restart = restart
        added = recorder_environment(self.paths, self.launch, os.getpid(), dict(os.environ))
        added["ETT_DEVICES_PER_RANK"] = str(value_of("devices_per_rank"))
        if self._recording is None or self._recording.on:
            for environment in envs.values():
                environment.update(added)

    def _begin(self) -> None:
        if self._recording is None:
            return
        wall, t = clock.wall_pair()
        start = clock.process_start_ns(os.getpid())
        self._recording.open_job({
            "command": sys.argv, "devices_per_rank": value_of("devices_per_rank"), "labels": {}, "cwd": working_folder(),
            "submitted": int(float(value_of("submitted")) * 1e9) or None, "launcher": "torchrun --logs-specs",
        })  # fmt: skip
        self._recording.make_attempt(attempt_name(self.launch))
        self._write({"k": "begin", "t": start or t, "attempt": attempt_name(self.launch), "launch": self.launch, "wall": wall})

    def _write(self, record: Record) -> None:
        if self._recording is not None:
            self._recording.write(record)
        elif record["k"] == "gone":
            self._write_beside(str(record["attempt"]), record)

    def _write_beside(self, attempt: str, record: Record) -> None:
        """Into the agent's own journal, beside the ranks'."""
        with contextlib.suppress(OSError):
            journal = self._journals.get(attempt)
            if journal is None:
                folder = self.paths.attempt(attempt)
                folder.mkdir(parents=True, exist_ok=True)
                journal = self._journals[attempt] = JournalWriter(folder / f"agent-p{os.getpid()}.jsonl")
                wall, t = clock.wall_pair()
                head = {"k": "head", "schema": e.SCHEMA, "t": t, "wall": wall, "boot": clock.boot_id(), "host": os.uname().nodename}
                journal.write({**head, "pid": os.getpid(), "role": "agent", "ettrain": VERSION})
            journal.write(record)

    def _run(self) -> None:
        """The thread: note the workers' ends, leave signs of life."""
        try:
            while not self._over.is_set():
                self.watch.wait(_WATCH_S)
                if self._recording is not None:
                    self._recording.alive()
        except Exception as error:  # noqa: BLE001 - as in `reify`
            tell(f"the ends of the workers are no longer noted: {error!r}")

    def _end(self) -> None:
        """torchrun ends in good order."""
        self._over.set()
        os.close(self._ending)
        self._thread.join(2 * _WATCH_S + 1.0)
        if not self._thread.is_alive():
            self.watch.finish()
        error = getattr(sys, "last_value", None)
        failed = attempt_name(self.launch, self._restart) in self.watch.failed
        end: Record = {"k": "end", "t": clock.monotonic_ns(), "attempt": attempt_name(self.launch)}
        end["code"] = 1 if error is not None or failed else 0
        end["sent"] = [error.sigval.name] if isinstance(error, SignalException) else []
        self._write(end)
        if self._recording is not None:
            self._recording.close()


def _job_name(environment: dict[str, str]) -> str:
    wanted = os.environ.get("ETT_JOB")
    if wanted is not None:
        if not JOB_NAME.fullmatch(wanted):
            raise UsageError(f"ETT_JOB={wanted!r}: use letters, digits, '.', '_' and '-', beginning with a letter or digit, at most 100")
        return wanted
    run = environment.get("TORCHELASTIC_RUN_ID", "none")
    if not _NO_ID.fullmatch(run) and JOB_NAME.fullmatch(run):
        return run
    return job_name_for(sys.argv[1:] or ["torchrun"])


def _launch_of_leader(paths: JobPaths) -> int:
    """Number of the launch that the first node began after this process was started.

    Raises:
        UsageError: it says nothing: it is not recorded, or the job's folder is not shared.
    """
    wall, t = clock.wall_pair()
    started = wall - t + (clock.process_start_ns(os.getpid()) or t) - 1_000_000_000
    tail, until = JournalTail(paths.supervisor_journal), t + int(_LEADER_S * 1e9)
    while clock.monotonic_ns() < until:
        with contextlib.suppress(EttrainError):
            for record in tail.read_new() if paths.supervisor_journal.exists() else []:
                if record["k"] == "begin" and record.get("wall", 0) >= started:
                    return int(record["launch"])
        clock.sleep_s(0.05)
    raise UsageError(f"the first node says nothing in {paths.root}: is --logs-specs ettrain given on every node, and the folder shared?")

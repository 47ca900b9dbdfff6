"""One process of a fake job: tells what it does, and writes what the recorder would; and the clocks it lives by."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ettrain import events as e
from ettrain.beat import open_beat
from ettrain.events import Record
from ettrain.jobpaths import rank_stem
from ettrain.journal import JournalWriter

if TYPE_CHECKING:
    from ettrain.testing.fakejob import FakeAttempt

EPOCH_S: Final = 1_767_225_600
"""2026-01-01T00:00:00Z, where a fake job begins unless told otherwise."""
_SECOND: Final = 1_000_000_000
_CODES: Final = {name: code for code, name in enumerate(e.FOUND_NAMES)}
_STALL_FACTOR: Final = 10


def to_ns(seconds: float) -> int:
    """Seconds as whole ns."""
    return round(seconds * _SECOND)


class FakeClock:
    """A wall and a monotonic clock that move only when told to.

    Attributes:
        wall_ns: wall clock, ns since the epoch.
        monotonic_ns: monotonic clock, ns.
    """

    def __init__(self, wall_s: float = EPOCH_S, monotonic_s: float = 1000) -> None:
        self.wall_ns = to_ns(wall_s)
        self.monotonic_ns = to_ns(monotonic_s)

    def advance(self, seconds: float) -> None:
        """Time passes."""
        self.wall_ns += to_ns(seconds)
        self.monotonic_ns += to_ns(seconds)

    def step_wall(self, seconds: float) -> None:
        """Somebody sets the wall clock; no time passes."""
        self.wall_ns += to_ns(seconds)

    def pair(self) -> tuple[int, int]:
        """(wall ns, monotonic ns), like `clock.wall_pair`."""
        return self.wall_ns, self.monotonic_ns


@dataclass(slots=True, kw_only=True)
class FakeHost:
    """One boot of one machine: its monotonic clock, and its wall clock with all its faults."""

    name: str
    boot: str
    monotonic_0: int = 1000 * _SECOND
    """Monotonic ns when the job begins."""
    skew_ns: int = 0
    """How far its wall clock is ahead when the job begins."""
    steps: list[tuple[int, int]] = field(default_factory=list)
    """(job ns, ns): from then on the wall clock is ahead by so much more."""

    def monotonic(self, t: int) -> int:
        """Its monotonic clock at job ns `t`."""
        return self.monotonic_0 + t

    def wall(self, t: int, origin: int) -> int:
        """Its wall clock at job ns `t`; the true one is `origin + t`."""
        return origin + t + self.skew_ns + sum(ns for at, ns in self.steps if at <= t)


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeCheckpoint:
    """A checkpoint that a fake rank saved."""

    identity: dict[str, Any]
    local_step: int


class Vanished(Exception):  # noqa: N818 - no error: how a rank's story ends in the middle of anything
    """A rank reached the instant at which it dies."""


class FakeRank:
    """One process of one rank: tells what it does, and writes what the recorder would.

    Attributes:
        t: where it is, job ns.
        counted: steps so far.
        gone_at: job ns at which its process ended; None while it lives.
    """

    def __init__(self, attempt: FakeAttempt, rank: int, world: int, host: FakeHost) -> None:
        self.attempt, self.rank, self.world, self.host = attempt, rank, world, host
        self.t = attempt.job.now
        self.counted = 0
        self.started = False
        self.gone_at: int | None = None
        self.code: int | None = None
        self.pid = attempt.job.next_pid()
        self._dies: tuple[int, int | None, tuple[str, str] | None] | None = None
        self._writer: JournalWriter | None = None
        self._beat: e.Slots = [0] * e.BEAT_SLOTS
        self._names: dict[str, int] = {}
        self._open: list[tuple[str, int, bool, int, int]] = []
        self._wait = self._lost = self._lost_then = self._last = self._limit = self._due = 0
        self._window = (-1, 0, 0)
        self._pow2 = 1
        self._age0 = 0
        self._commits: list[tuple[int, Record]] = []

    # ---- life

    @property
    def living(self) -> bool:
        """Whether its process has started and not ended."""
        return self.started and self.gone_at is None

    def start(self, *, interpreter: float = 0) -> None:
        """The process begins; the recorder enters `interpreter` seconds later."""
        begin, self.t, self.started = self.t, self.t + to_ns(interpreter), True
        folder = self.attempt.job.paths.attempt(self.attempt.name)
        stem = rank_stem(self.rank, self.pid)
        self._writer = JournalWriter(folder / f"{stem}.jsonl", exclusive=True)
        self._beat = open_beat(folder / f"{stem}.beat", self.pid)
        self._age0 = self.t
        mono = self.host.monotonic
        self.write({
            "k": "head", "schema": e.SCHEMA, "wall": self.host.wall(self.t, self.attempt.job.origin), "boot": self.host.boot,
            "host": self.host.name, "pid": self.pid, "role": "rank", "rank": self.rank, "world": self.world, "start": mono(begin),
            "entered": mono(self.t), "devices": self.attempt.job.devices_per_rank,
        })  # fmt: skip

    def write(self, record: Record, t: int | None = None, end: int | None = None) -> None:
        """Write a record of this process's at job ns `t` (now if None)."""
        if self._writer is None:
            raise AssertionError("a rank that has not started writes nothing")
        self._commit(self.t)
        times = {"t": self.host.monotonic(self.t if t is None else t)}
        if end is not None:
            times["end"] = self.host.monotonic(end)
        self._writer.write({**record, **times})

    def dies(self, after: float, code: int | None = -9, *, error: tuple[str, str] | None = None) -> None:
        """It will be gone `after` seconds from now, whatever it is doing then; the call that gets there raises `Vanished`.

        Args:
            error: (type, message) of an exception that ends it; without one it vanishes without a word.
        """
        self._dies = self.t + to_ns(after), code, error

    def vanish(self, code: int | None = -9) -> None:
        """The process is gone, without a word; the supervisor sees when, and where `code` is known, how."""
        if not self.living:
            return
        self._commit(self.t)
        self.gone_at, self.code = self.t, code
        record: Record = {"k": "gone", "pid": self.pid, "attempt": self.attempt.name}
        if self.host.boot == self.attempt.job.hosts[0].boot:
            self.attempt.job.tell(record if code is None else {**record, "code": code}, self.t)
        self.close()

    def close(self) -> None:
        """Let go of the journal; nothing can be written any more."""
        if self._writer is not None:
            self._writer.close()

    def throw(self, kind: str, message: str, *, code: int = 1) -> None:
        """An exception leaves the program, and ends on its way the stages that are open."""
        while self._open:
            self.leave(err=kind)
        self.write({"k": "exc", "how": "main", "type": kind, "message": message, "trace": ""})
        self._finish()
        self.vanish(code)

    def exit(self, code: int = 0, *, teardown: float = 0) -> None:
        """The interpreter ends in good order, and is gone `teardown` seconds later."""
        if self.living:
            self._finish()
            self._dies = None
            self.pause(teardown)
            self.vanish(code)

    def _finish(self) -> None:
        if self.counted:
            self._progress(self._last)
        wall = self.host.wall(self.t, self.attempt.job.origin)
        self.write({"k": "clock", "wall": wall})
        self.write({"k": "exit", "step": self.counted})

    # ---- stages

    def pause(self, seconds: float) -> None:
        """Time passes, and no stage covers it."""
        then = self.t + to_ns(seconds)
        if self._dies is not None and then >= self._dies[0]:
            at, code, error = self._dies
            self.t, self._dies = max(self.t, at), None
            if error is not None:
                self.throw(*error)
            self.vanish(code)
            raise Vanished
        self.t = then

    def stage(self, name: str, seconds: float, *, user: bool = False, part: str = "") -> None:
        """Go through a stage."""
        self.enter(name, user=user)
        self.pause(seconds)
        self.leave(**({"part": part} if part else {}))

    def enter(self, name: str, *, user: bool = False) -> None:
        """Begin a stage; on the beat page at once, in the journal when it ends."""
        depth = len(self._open)
        self._open.append((name, self.t, user, self.counted, self._lost))
        if depth < e.MAX_DEPTH:
            self._beat[e.B_STACK + 2 * depth] = self._code(name, user=user)
            self._beat[e.B_STACK + 2 * depth + 1] = self.host.monotonic(self.t)
        self._beat[e.B_DEPTH] = depth + 1

    def leave(self, **more: Any) -> None:
        """End the stage begun last."""
        name, begin, user, counted, lost = self._open.pop()
        self._beat[e.B_DEPTH] = len(self._open)
        self._beat[e.B_ACTIVE_T] = self.host.monotonic(self.t)
        inside = self.counted - counted
        if not inside:
            self._lost = lost + self.t - begin
        self.write({"k": "span", "name": name, "by": "user" if user else "found", **({"steps": inside} if inside else {}), **more}, begin, self.t)

    def beside(self, name: str, begin: float, seconds: float) -> None:
        """A stage on another thread, `begin` seconds from now."""
        start = self.t + to_ns(begin)
        self.write({"k": "span", "name": name, "by": "found", "lane": 7}, start, start + to_ns(seconds))

    def mark(self, name: str) -> None:
        """An instant, e.g. `first_forward`."""
        self.write({"k": "mark", "name": name})

    def save(self, seconds: float, path: str = "", *, commit_after: float | None = None, fails: bool = False) -> FakeCheckpoint:
        """Save a checkpoint; with `commit_after` asynchronously: it is durable that many seconds after the blocking part (< 0: never)."""
        self.attempt.job.saves += 1
        number = self.attempt.job.saves
        identity: dict[str, Any] = {"path": path or f"/fake/{number}.pt", "ino": [1, number], "size": 1, "mtime": number}
        more: dict[str, Any] = {"part": "torch.save", "save": number, "step": self.counted, "id": identity}
        if commit_after is not None:
            more.update(part="dcp.async_save", pending=True)
        if fails:
            more["err"] = "OSError"
        if self.counted:
            self._write_progress(self._last)
        self.enter("checkpoint_save")
        self.pause(seconds)
        self.leave(**more)
        if commit_after is not None and commit_after >= 0:
            self._commits.append((self.t + to_ns(commit_after), {"k": "commit", "save": number, "ok": True, "id": identity}))
        return FakeCheckpoint(identity=identity, local_step=self.counted)

    def load(self, checkpoint: FakeCheckpoint | None, seconds: float) -> None:
        """Load a checkpoint (None: one that this job did not save)."""
        self.enter("checkpoint_load")
        self.pause(seconds)
        identity = {"path": "/elsewhere.pt"} if checkpoint is None else checkpoint.identity
        self.leave(part="torch.load", step=self.counted, id=identity)

    def _commit(self, until: int) -> None:
        """Write which asynchronous saves became durable by then."""
        due = [(t, record) for t, record in self._commits if t <= until]
        self._commits = [(t, record) for t, record in self._commits if t > until]
        for t, record in due:
            self.write(record, t)

    def _code(self, name: str, *, user: bool) -> int:
        code = None if user else _CODES.get(name)
        if code is None:
            code = self._names.get(name)
            if code is None:
                code = self._names[name] = e.FIRST_USER_CODE + len(self._names)
                self.write({"k": "name", "code": code, "name": name})
        return code

    # ---- steps

    def said(self, step: int) -> None:
        """The program says that it has finished `step` steps."""
        self._beat[e.B_SAID] = step + 1
        self.write({"k": "said", "local": self.counted, "step": step})

    def steps(self, count: int, seconds_each: float, *, wait: float = 0, compiling: float = 0) -> None:
        """Train `count` steps."""
        for number in range(count):
            self.step(seconds_each, wait=wait, compiling=0 if number else compiling)

    def step(self, seconds: float, *, wait: float = 0, compiling: float = 0) -> None:
        """Train one step: `compiling` seconds in the compiler, then `seconds`, of which `wait` are short waits for data."""
        self.begin_step(compiling=compiling)
        self._wait += to_ns(wait)
        self._lost += to_ns(wait)
        self._beat[e.B_WAIT] = self._wait
        self.pause(seconds)
        self.count()

    def begin_step(self, *, compiling: float = 0) -> None:
        """A step begins; without `count` after it, it never ends."""
        if not self.counted:
            self.mark("first_forward")
        if compiling:
            self.stage("compile", compiling)
        if not self.counted:
            self.mark("first_backward")

    def count(self) -> None:
        """A step ends now."""
        self.counted += 1
        self._beat[e.B_STEP_T] = self.host.monotonic(self.t)
        self._beat[e.B_STEP] = self.counted
        net = self.t - self._last - (self._lost - self._lost_then)
        if self._limit and net > self._limit:
            typical = self._limit // _STALL_FACTOR if self._limit > _SECOND else self._beat[e.B_TYPICAL]
            self.write({"k": "slow", "typical": typical}, self._last, self.t)
            self._lost += net - typical
        self._last, self._lost_then = self.t, self._lost
        if self.counted == self._pow2 or self.t > self._due:
            self._progress(self.t)

    def _progress(self, t: int) -> None:
        if self.counted == 1:
            self._beat[e.B_FIRST_STEP_T] = self.host.monotonic(t)
            self.write({"k": "mark", "name": "first_step"}, t)
        begin, counted, lost = self._window
        if begin >= 0 and self.counted > counted:
            typical = max(0, t - begin - (self._lost - lost)) // (self.counted - counted)
            self._beat[e.B_TYPICAL] = typical
            self._limit = self._beat[e.B_LIMIT] = max(_STALL_FACTOR * typical, _SECOND)
        self._window = (t, self.counted, self._lost)
        while self._pow2 <= self.counted:
            self._pow2 *= 2
        self._due = t + max(_SECOND, (t - self._age0) >> 7)
        self._write_progress(t)

    def _write_progress(self, t: int) -> None:
        self.write({"k": "prog", "step": self.counted, "wait": self._wait, "limit": self._limit}, t)

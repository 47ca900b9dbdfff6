"""Planned stops: a signal or a time limit asks the training to save while there is still time, and to end as it would have ended.

A signal's handler only takes a note of it. The training loop asks `asked` between two steps, saves, and calls `end`, which hands the
signal to whatever it was meant for: the handler that was there before, or the default, which ends the process. Before the loop has asked
for the first time there is nothing to save, so signals act as ever; and whoever never asks again loses nothing either, since `forget`
hands over what nobody took.

A launcher also sends SIGTERM because another rank has died, and then the loop may be stuck for ever in a collective: a thread
sees to it that the process ends all the same, soon after the loop should have asked or the ranks should have agreed. Not here: saving, and telling
the other ranks.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import weakref
from _thread import get_ident
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

from ettrain import clock
from ettrain.errors import UsageError
from ettrain.events import MAX_LINE, decode
from ettrain.jobpaths import JobPaths
from ettrain.record.guard import guard
from ettrain.record.recorder import now, recorder
from ettrain.settings import ENV_JOB_DIR, ENV_SUPERVISOR, end_time_s, value_of

RESERVE_S: Final = 30.0
"""A time limit is taken to be so much earlier: the save and the end of the program have to fit in."""
TORCHRUN_GRACE_S: Final = 30.0
"""torchrun passes SIGTERM on to its workers and sends SIGKILL so long after. Source: torch.distributed.elastic, `PContext.close`."""
PATIENCE_S: Final = 2.0
AGREEMENT_S: Final = 5.0
PATIENCE_STEPS: Final = 4
"""After a signal the loop has so many seconds, or of its own steps where they take longer, to ask; and then the ranks to agree."""
_NS: Final = 1_000_000_000
_LOOK_S: Final = 0.05
_JUST_NOW_NS: Final = 10 * _NS


class Stops:
    """What asks this process to stop. Takes hold of the signals at once, on the main thread only.

    Args:
        time_limit: seconds from now until the hardware is taken away; None = what ETT_END_TIME says, else SLURM_JOB_END_TIME, both in
            seconds since the epoch, else no limit.
        signals: names of the signals that mean a stop; None = what ETT_STOP_SIGNALS says, else SIGTERM alone.

    Raises:
        UsageError: a signal that there is none, or that cannot be caught; a time that is none.
    """

    def __init__(self, *, time_limit: float | None = None, signals: tuple[str, ...] | None = None) -> None:
        self.takes_s = 0.0
        """What a save is known to take: a time limit leaves room for twice that."""
        self._pid = os.getpid()
        self._end_ns = _end_ns(time_limit)
        self._got: int | None = None
        """The first signal that came."""
        self._got_ns = 0
        self._polled = self._told = self._limit_near = self._handed_over = False
        self._before: dict[int, Any] = {}
        self._asked_ns = self._gap_ns = 0
        self.agrees = False
        """Whether whoever asks will call `agreed` before the save goes on: the process ends as ever where that does not come."""
        self._agreed = False
        self._wakeup: tuple[int, int] | None = None
        numbers = _numbers(signals if signals is not None else tuple(str(value_of("stop_signals")).split(",")))
        try:
            for number in numbers:
                self._take(number)
        except ValueError:  # only the main thread of the main interpreter may
            self._before.clear()
            names = ", ".join(signal.Signals(number).name for number in numbers)
            guard.fault("planned stops", f"made on another thread than the main one: {names} will end the program without a save")
        if any(before == signal.SIG_DFL for before in self._before.values()):
            self._watch()
        _alive.add(self)

    def _take(self, number: int) -> None:
        before = signal.getsignal(number)
        if before is None:  # set by C code: it could not be called in our place
            guard.fault(
                "planned stops",
                f"{signal.Signals(number).name} is handled by a library already: it stays so, and nothing is saved before it",
            )
            return
        self._before[number] = before
        signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        before = self._before.get(number)
        if os.getpid() == self._pid and self._polled:
            if self._got is None:  # a second one, e.g. from the launcher and from the scheduler, changes nothing
                self._got, self._got_ns = number, clock.monotonic_ns()
        elif callable(before):
            before(number, frame)
        elif before == signal.SIG_DFL:
            self._let_go()
            _raise_again(number)

    # ---- what the training loop asks

    def asked(self) -> bool:
        """Whether to save now and stop; to be asked between two steps."""
        now_ns = clock.monotonic_ns()
        if self._polled:
            self._gap_ns += (now_ns - self._asked_ns - self._gap_ns) // 4 if self._gap_ns else now_ns - self._asked_ns
        self._polled, self._asked_ns = True, now_ns
        if self._got is None and not self._limit_near:
            if self._end_ns is None or clock.monotonic_ns() < self._end_ns - int(max(RESERVE_S, 2 * self.takes_s) * _NS):
                return False
            self._limit_near = True
        if not self._told:
            self._told = True
            self._record()
        return True

    def agreed(self) -> None:
        """Say that all ranks take part in the save: from now on it takes the time that it takes."""
        self._agreed = True

    def why(self) -> str:
        """What asks for it, in words; '' while nothing does."""
        left = self.left_s()
        room = "" if left is None else f", {left:.0f} s are left"
        if self._got is not None:
            return f"told to stop by {signal.Signals(self._got).name}{room}"
        return f"the time limit is near{room}" if self._limit_near else ""

    def left_s(self) -> float | None:
        """Seconds until the process must be expected to be killed; None where nobody said."""
        ends = [self._end_ns] if self._end_ns is not None else []
        grace_s = _grace_s()
        if self._got is not None and grace_s is not None:
            ends.append(self._got_ns + int(grace_s * _NS))
        return max(0.0, (min(ends) - clock.monotonic_ns()) / _NS) if ends else None

    # ---- the end of it

    def end(self) -> None:
        """What was to be saved is saved: end as the signal would have ended it. Returns only where an earlier handler does.

        Where another rank was told to stop, or the time limit asked for it, that is as SIGTERM would have.
        """
        if os.getpid() == self._pid and not self._handed_over:
            self._got = self._got if self._got is not None else int(signal.SIGTERM)
            self.forget()

    def forget(self) -> None:
        """Let go of the signals; one that came and that nobody took acts now."""
        got, self._got = self._got, None
        self._end_ns, self._limit_near = None, False
        self._let_go()
        if got is not None and os.getpid() == self._pid:
            self._handed_over = True
            _raise_again(got)

    # ---- where the loop does not ask any more

    def _watch(self) -> None:
        """Hear of signals on a thread of its own, which works while the main thread is stuck in C code."""
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        if before != -1:  # somebody else's, e.g. asyncio's
            signal.set_wakeup_fd(before)
            os.close(reader)
            os.close(writer)
            return
        os.set_blocking(reader, True)
        self._wakeup = reader, writer
        threading.Thread(target=self._hear, args=(reader,), name="ettrain stops", daemon=True).start()

    def _hear(self, reader: int) -> None:
        try:
            while heard := os.read(reader, 64):
                number = next((number for number in heard if self._before.get(number) == signal.SIG_DFL), None)
                if number is not None and self._polled and self._is_stuck():
                    _die_of(number)
        except OSError as error:
            guard.fault("planned stops", error)
        finally:
            os.close(reader)

    def _is_stuck(self) -> bool:
        """Wait until the loop asks and the ranks agree; True where that does not come in time."""
        heard_ns = clock.monotonic_ns()
        if _supervisor_was_told(heard_ns):  # nobody has died: whatever the loop does now may take all of the grace
            return False
        step_ns = PATIENCE_STEPS * self._gap_ns
        waits: tuple[tuple[float, Callable[[], bool]], ...] = (
            (PATIENCE_S, lambda: self._asked_ns > heard_ns),
            (AGREEMENT_S, lambda: self._agreed or not self.agrees),
        )
        for limit_s, done in waits:
            until_ns = clock.monotonic_ns() + max(int(limit_s * _NS), step_ns)
            while not done():
                if not self._before:  # let go: it was handed over
                    return False
                if clock.monotonic_ns() > until_ns:
                    return True
                clock.sleep_s(_LOOK_S)
        return False

    def _unwatch(self) -> None:
        if self._wakeup is None:
            return
        _, writer = self._wakeup
        self._wakeup = None
        try:
            if (now := signal.set_wakeup_fd(-1)) != writer:
                signal.set_wakeup_fd(now)
        except ValueError as error:  # not on the main thread
            guard.fault("planned stops", error)
            return
        os.close(writer)  # the thread reads the end, and ends

    def _let_go(self) -> None:
        self._unwatch()
        for number, before in self._before.items():
            try:
                if signal.getsignal(number) == self._on_signal:  # whoever has taken it since keeps it
                    signal.signal(number, before)
            except ValueError as error:
                guard.fault("planned stops", error)
        self._before.clear()

    def _record(self) -> None:
        try:
            by = signal.Signals(self._got).name if self._got is not None else "time limit"
            recorder.emit({"k": "stop", "t": now(), "by": by, "left": self.left_s()})
        except Exception as error:  # noqa: BLE001 - the guard's rule
            guard.fault("planned stop", error)


_alive: Final[weakref.WeakSet[Stops]] = weakref.WeakSet()


_masks: Final[dict[int, set[signal.Signals]]] = {}
"""Thread that forks -> the signals that it had blocked before."""


def _before_fork() -> None:
    """A signal that reaches the child before it is itself would be lost: it waits until then."""
    ours = {number for stops in list(_alive) for number in stops._before}
    if ours:
        _masks[get_ident()] = {*map(signal.Signals, signal.pthread_sigmask(signal.SIG_BLOCK, ours))}


def _in_parent() -> None:
    mask = _masks.pop(get_ident(), None)
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _in_child() -> None:
    """A forked child, e.g. a loader's worker, has no training to save: signals act on it as ever."""
    for stops in list(_alive):
        stops._got = None
        stops._let_go()
    _in_parent()


os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)


def _supervisor_was_told(heard_ns: int) -> bool:
    """Whether `ett run` got a signal just now, which it writes down before it passes it on: then the stop is a planned one."""
    folder = os.environ.get(ENV_JOB_DIR)
    if not folder:
        return False
    try:
        with JobPaths(Path(folder)).supervisor_journal.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4 * MAX_LINE))
            told = [decode(line) or {} for line in file]
    except OSError:
        return False
    return any(one.get("k") == "signal" and isinstance(one.get("t"), int) and abs(heard_ns - one["t"]) < _JUST_NOW_NS for one in told)


def _die_of(number: int) -> None:
    """End by the signal's default action, whatever the main thread does: only C code may say so on another thread."""
    ctypes.CDLL(None).signal(number, None)
    os.kill(os.getpid(), number)


def _raise_again(number: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # closed, or none
            continue
    os.kill(os.getpid(), number)


def _numbers(names: tuple[str, ...]) -> list[int]:
    numbers = []
    for name in (name.strip().upper() for name in names if name.strip()):
        found = getattr(signal, name if name.startswith("SIG") else f"SIG{name}", None)
        if not isinstance(found, signal.Signals) or found in (signal.SIGKILL, signal.SIGSTOP):
            raise UsageError(
                f"stop signal {name!r}: no signal that can be caught. Name some of SIGTERM, SIGUSR1, SIGUSR2, e.g. ETT_STOP_SIGNALS=SIGTERM,SIGUSR1."
            )
        numbers.append(int(found))
    return numbers


def _end_ns(time_limit: float | None) -> int | None:
    """Monotonic instant at which the hardware is taken away; None = not known."""
    wall, monotonic = clock.wall_pair()
    if time_limit is not None:
        if not 0 < time_limit < 1e9:
            raise UsageError(f"time_limit={time_limit!r}: say in how many seconds from now the hardware is taken away, or None.")
        return monotonic + int(time_limit * _NS)
    end_s = end_time_s()
    end = monotonic + int(end_s * _NS) - wall
    return end if end_s and end > monotonic else None  # one that has passed is an earlier allocation's


def _grace_s() -> float | None:
    """Seconds between SIGTERM and SIGKILL, as far as those above us are known."""
    known = []
    if ENV_SUPERVISOR in os.environ:
        known.append(float(value_of("grace_s")))
    if "TORCHELASTIC_RUN_ID" in os.environ:
        known.append(TORCHRUN_GRACE_S)
    return min(known, default=None)

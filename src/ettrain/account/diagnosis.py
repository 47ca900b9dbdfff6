"""Why an attempt ended: exit codes, signals and the exception of the rank that stopped first -> a class of `lifecycle.CLASSES`.

It reads only what was recorded; where that is not enough it says `exit_code` or `unknown` rather than guess.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import Final

from ettrain.account.frames import Frame
from ettrain.account.history import AttemptHistory, RankHistory
from ettrain.lifecycle import CLASSES, PREEMPTION, STOP

_PATTERNS: Final[tuple[tuple[str, str], ...]] = (
    ("gpu_hardware", r"uncorrectable ECC|\bXid\b|NVLink.*error|unspecified launch failure|GPU is lost|hardware error"),
    ("cuda_oom", r"CUDA out of memory|OutOfMemoryError|CUDA failure 'out of memory'|HIP out of memory"),
    ("device_assert", r"device-side assert"),
    ("collective_timeout", r"collective operation timeout|Watchdog caught collective|Timed out waiting .*ms for (recv|send) operation"),
    ("checkpoint_corrupt", r"file might be corrupted|failed finding central directory|PytorchStreamReader failed|invalid header or archive"),
    ("disk_full", r"No space left on device|Disk quota exceeded|PytorchStreamWriter failed writing|file write failed|\[Errno (28|122)\]"),
    ("storage_io", r"Input/output error|Stale file handle|SlowDown|Read-only file system|\[Errno (5|116|30)\]"),
    ("shm_full", r"out of shared memory|shared memory limit|unable to (open|write) .*shared memory|/dev/shm"),
    ("data_worker", r"DataLoader worker .* (killed by signal|exited unexpectedly)|received 0 items of ancdata"),
    ("port_in_use", r"EADDRINUSE|address already in use"),
    ("rendezvous_timeout", r"Rendezvous|store based barrier|client socket has timed out|wait timeout after|connectFullMesh failed"),
    ("peer_lost", r"Connection (closed|reset) by (remote )?peer|remote process exited|Broken pipe|Socket closed|peer closed|ECONNRESET"),
    ("network", r"Name or service not known|No route to host|network error|Network is unreachable|Connection refused|NCCL error|ncclRemoteError"),
    ("env_mismatch", r"driver version is insufficient|cannot open shared object file|No module named|undefined symbol|cannot import name"),
    ("numeric_divergence", r"\b(loss|gradient)s?\b.*\b(NaN|inf|infinite|infinity)\b|became infinite or NaN|FloatingPointError"),
    ("missing_file", r"FileNotFoundError|No such file or directory"),
    ("permission", r"PermissionError|Permission denied"),
)
_COMPILED: Final = tuple((name, re.compile(pattern, re.IGNORECASE)) for name, pattern in _PATTERNS)
_USER_TYPES: Final = frozenset(
    (
        *("TypeError", "ValueError", "KeyError", "IndexError", "AttributeError", "NameError", "UnboundLocalError", "AssertionError"),
        *("ZeroDivisionError", "SyntaxError", "IndentationError", "NotImplementedError", "RecursionError", "StopIteration"),
        *("UnicodeDecodeError", "ArithmeticError", "FloatingPointError", "ImportError", "ModuleNotFoundError", "LookupError"),
    )
)
_USER_TEXT: Final = re.compile(r"shapes? cannot be multiplied|size mismatch|must match the size|expected .* but got|out of bounds", re.IGNORECASE)
_BY_SIGNAL: Final = {
    signal.SIGKILL: "killed",
    signal.SIGSEGV: "segfault",
    signal.SIGABRT: "aborted",
    signal.SIGBUS: "bus_error",
    signal.SIGTERM: "preemption",
    signal.SIGINT: "interrupted",
}


_TIME_LIMIT: Final = "time limit"
_AFTER_STOP: Final = {None: "", True: "; its state was saved first", False: "; its state could not be saved in time"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Why an attempt ended."""

    kind: str
    cls: str
    component: str
    rank: int | None
    text: str


def diagnose(attempt: AttemptHistory, frame: Frame) -> Diagnosis:
    """Diagnosis of an attempt that was interrupted."""
    culprit = frame.culprit
    cls, text = _classify(attempt, frame, culprit)
    kind, component = CLASSES[cls]
    if kind in (PREEMPTION, STOP):
        text += _AFTER_STOP[stop_was_saved(attempt)]
    return Diagnosis(kind=kind, cls=cls, component=component, rank=culprit.rank if culprit else None, text=text)


def stop_was_saved(attempt: AttemptHistory) -> bool | None:
    """Whether every rank that was told of a planned stop saved its state after that; None where none was told."""
    told = [(rank, rank.planned_stop.t) for rank in attempt.ranks if rank.planned_stop is not None]
    if not told:
        return None
    return all(any(save.durable is not None and save.snapshot >= t for save in rank.saves) for rank, t in told)


def _classify(attempt: AttemptHistory, frame: Frame, culprit: RankHistory | None) -> tuple[str, str]:
    if attempt.told_class in CLASSES:
        return attempt.told_class, attempt.text or "as the source says"
    if attempt.text:
        return "command_not_found", attempt.text
    if attempt.sent:
        return _of_sent(attempt.sent)
    quiet = f"no step for {(frame.end - frame.stopped) / 1e9:.1f} s, then ended from outside"
    if attempt.ended_by == "hang":
        return "hang", quiet
    if attempt.lost:
        return "supervisor_lost", "the supervisor vanished with the attempt: host or container lost, or killed from outside"
    if attempt.oom_kills:
        return "host_oom", f"the kernel killed {attempt.oom_kills} process(es) for memory"
    if culprit is not None and culprit.error is not None:
        return classify_error(culprit.error.type, culprit.error.message), f"{culprit.error.type}: {culprit.error.message}"
    if frame.hung:
        return "hang", quiet
    code = attempt.code if culprit is None or culprit.code is None else culprit.code
    if culprit is not None and culprit.planned_stop is not None and code is not None and code < 0 and code != -signal.SIGKILL:
        by = culprit.planned_stop.by
        return "preemption", f"rank {culprit.rank} {'stopped before its time limit' if by == _TIME_LIMIT else f'was told to stop by {by}'}"
    return _of_code(code, culprit)


def classify_error(type_name: str, message: str) -> str:
    """Class of an exception, from its type's name and its message."""
    text = f"{type_name}: {message}"
    for cls, pattern in _COMPILED:
        if pattern.search(text):
            return cls
    if type_name == "KeyboardInterrupt":
        return "interrupted"
    if type_name in _USER_TYPES or _USER_TEXT.search(message):
        return "user_exception"
    return "exception"


def _of_sent(sent: tuple[str, ...]) -> tuple[str, str]:
    if "SIGINT" in sent:
        return "interrupted", "stopped with Ctrl-C (SIGINT)"
    return "preemption", f"told to stop with {sent[0]}"


def _of_code(code: int | None, culprit: RankHistory | None) -> tuple[str, str]:
    who = f"rank {culprit.rank}" if culprit is not None else "the launcher"
    if code is None:
        if culprit is not None and culprit.exit_t is None:
            return "killed", f"{who} vanished without a word: a signal that cannot be caught (SIGKILL), or os._exit"
        return "unknown", "nothing recorded says why"
    number = -code if code < 0 else code - 128
    if code < 0 or 128 < code < 160:
        try:
            name = signal.Signals(number)
        except ValueError:
            return "exit_code", f"{who} ended with exit code {code}"
        return _BY_SIGNAL.get(name, "aborted"), f"{who} was ended by {name.name}"
    if code == 0:
        return "stopped", f"{who} ended in good order and the job was taken up again later"
    if culprit is not None and culprit.code is None and culprit.exit_t is None:
        return "killed", f"{who} vanished without a word: a signal that cannot be caught (SIGKILL), or os._exit"
    return "exit_code", f"{who} ended with exit code {code}"

"""What the jobs of one program teach the next: RUNS/.learned/<program>.json, and the journals of those that have not written it there.

Read before an attempt and written after it, by `ett run` alone. Bounded, however many jobs the folder holds: of each program one
file, a few jobs that are under way or died, a few attempts of each, a few ranks of each. Nothing here is ever an error to the user:
what cannot be read is not known, what cannot be written is learned again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ettrain.account.assemble import applied_of, compile_of, dims_of
from ettrain.account.dynamic import Knowledge, learn, merged, updated
from ettrain.account.history import Compile, Dims
from ettrain.account.sources import Place
from ettrain.events import decode
from ettrain.jobpaths import JobPaths

FOLDER: Final = ".learned"
MAX_JOBS, MAX_ATTEMPTS, MAX_RANKS = 8, 4, 32
"""Of jobs that have not yet written down what they learned, of each job's attempts, of each attempt's ranks: so many are read."""
MAX_BYTES: Final = 64 << 20
"""A longer journal is read so far."""
_LAUNCHERS: Final = ("torch.distributed.run", "torch.distributed.launch", "torch.distributed.elastic", "accelerate.commands.launch")
_ODD: Final = (KeyError, TypeError, ValueError, AttributeError, IndexError)
"""What foreign content of a file may lead to."""
_TELLING: Final = (b'"k":"dims"', b'"k":"refused"', b'"name":"compile"')


def program_of(words: Sequence[str], folder: str) -> str:
    """What stays the same where the same program is run again: its file with its path, or `-m` and its module; never its arguments.

    A command without either is known by the text after `-c`, else by its own name.

    Args:
        words: the command.
        folder: where it runs.
    """
    for index, word in enumerate(words):
        if word.endswith((".py", ".sh")):
            return os.path.realpath(os.path.join(folder, word))
        if word in ("-m", "--module") and index + 1 < len(words) and not words[index + 1].startswith(_LAUNCHERS):
            return f"-m {words[index + 1]}"
        if word == "-c" and index + 1 < len(words):
            return f"-c {words[index + 1]}"
    return os.path.basename(words[0])


@dataclass(slots=True)
class _Book:
    """What is in the file."""

    jobs: list[str] = field(default_factory=list)
    """Jobs that began and have not written down what they learned, newest last."""
    dynamic: Knowledge = field(default_factory=dict)


class Lessons:
    """What is known of one program, in one runs folder."""

    def __init__(self, runs: Path, program: str) -> None:
        digest = hashlib.sha256(program.encode("utf-8", "surrogateescape")).hexdigest()[:12]
        stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(program).name).strip("-.")[:40] or "program"
        self.runs, self.program = runs, program
        self.path = runs / FOLDER / f"{stem}-{digest}.json"

    def dynamic(self, job: JobPaths) -> Knowledge:
        """What is known of its dynamic shapes, with what this job's attempts have recorded so far; leaves word that the job is there."""
        with self._locked():
            book = self._read()
            known = book.dynamic
            for name in [name for name in book.jobs if name != job.name][-MAX_JOBS:]:
                known = updated(known, read_dynamic(JobPaths(self.runs / name)))
            known = updated(known, read_dynamic(job))
            others = [name for name in book.jobs if name != job.name and (self.runs / name).is_dir()]
            self._write(_Book([*others, job.name][-MAX_JOBS:], known))
            return known

    def keep(self, job: JobPaths) -> None:
        """Write down what the job has taught, now that it has ended."""
        taught = read_dynamic(job)
        if not taught and not self.path.exists():
            return
        with self._locked():
            book = self._read()
            jobs = [name for name in book.jobs if name != job.name]
            if taught or jobs != book.jobs:
                self._write(_Book(jobs, updated(book.dynamic, taught)))

    # ---- the file

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Alone with the file, as far as the file system knows locks."""
        lock = -1
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            if lock >= 0:
                os.close(lock)

    def _read(self) -> _Book:
        try:
            told = json.loads(self.path.read_text(encoding="utf-8"))
            jobs = [name for name in told["jobs"] if isinstance(name, str)]
            return _Book(jobs, _knowledge(told["dynamic"]))
        except (OSError, *_ODD):
            return _Book()

    def _write(self, book: _Book) -> None:
        functions = [
            {"function": name, "where": where, "places": [[place.source, place.dim, state] for place, state in sorted(states.items(), key=str)]}
            for (name, where), states in sorted(book.dynamic.items())
        ]
        told = {"schema": 1, "program": self.program, "jobs": book.jobs, "dynamic": functions}
        temporary = self.path.with_suffix(f".{os.getpid()}.tmp")
        with contextlib.suppress(OSError):
            temporary.write_text(json.dumps(told) + "\n", encoding="utf-8")
            os.replace(temporary, self.path)


def _knowledge(told: Any) -> Knowledge:
    return {
        (str(one["function"]), str(one["where"])): {
            Place(str(source), dim if isinstance(dim, int) else None): str(state) for source, dim, state in one["places"]
        }
        for one in told
    }


# ---- journals


def read_dynamic(job: JobPaths) -> Knowledge:
    """What a job's journals tell of its dynamic shapes: its last attempts, the first ranks of each."""
    lessons: list[Knowledge] = []
    with contextlib.suppress(OSError):
        for name in job.attempt_names()[-MAX_ATTEMPTS:]:
            lessons += [_lesson(path) for path in sorted(job.attempt(name).glob("rank-*.jsonl"))[:MAX_RANKS]]
    return merged(lessons)


def _lesson(path: Path) -> Knowledge:
    """What one process's journal teaches."""
    dims: list[Dims] = []
    compiles: list[Compile] = []
    applied: str | None = ""
    with contextlib.suppress(OSError), path.open("rb") as file:
        for line in file.readlines(MAX_BYTES):
            if not any(word in line for word in _TELLING):
                continue
            record = decode(line) or {}
            with contextlib.suppress(*_ODD):
                if record["k"] != "dims":
                    compiles.append(compile_of(record))
                elif "applied" in record:
                    applied = applied_of(record)
                else:
                    dims.extend(dims_of(record))
    with contextlib.suppress(*_ODD):
        return learn(dims, compiles, applied)
    return {}

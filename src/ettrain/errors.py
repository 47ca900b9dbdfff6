"""Every error ettrain raises on purpose.

    EttrainError
    ├── UsageError          a command line or an argument that cannot be obeyed
    ├── JobNotFoundError    no such job in the runs folder
    ├── JournalError        an event file that cannot be read as one
    ├── ImportFormatError   a foreign log that is not what it was said to be
    ├── CheckpointInvalidError  a checkpoint that is not whole, or not what it says it is
    ├── CheckpointSaveError a checkpoint that could not be saved; the one before it stays
    ├── PublishFailedError  a model that was asked for is not published
    ├── LawError            the accounting contradicts itself: a defect of ettrain, never hidden
    └── MissingExtraError   an optional dependency is not installed

Not here: faults inside a training process. Those are never raised, see `record.guard`.
"""

from __future__ import annotations


class EttrainError(Exception):
    """Base of all errors. `exit_code` is what the command line ends with."""

    exit_code = 1


class UsageError(EttrainError):
    """A command line or an argument that cannot be obeyed."""

    exit_code = 2


class JobNotFoundError(EttrainError):
    """No such job in the runs folder."""

    exit_code = 3

    def __init__(self, wanted: str | None, runs: str, known: list[str]) -> None:
        self.wanted, self.runs, self.known = wanted, runs, known
        super().__init__(wanted)

    def __str__(self) -> str:
        what = f"no job named '{self.wanted}'" if self.wanted else "no job yet"
        if self.known:
            return f"{what} in {self.runs}. Known there: {', '.join(self.known[:8])}."
        return f"{what} in {self.runs}. Record one with: ett run -- python train.py (or point --runs at another folder)."


class JournalError(EttrainError):
    """An event file that cannot be read as one."""

    exit_code = 4

    def __init__(self, path: str, why: str, mend: str) -> None:
        self.path, self.why, self.mend = path, why, mend
        super().__init__(path)

    def __str__(self) -> str:
        return f"{self.path}: {self.why}. {self.mend}"


class ImportFormatError(EttrainError):
    """A foreign log that is not what it was said to be."""

    exit_code = 5

    def __init__(self, path: str, line: int | None, why: str) -> None:
        self.path, self.line, self.why = path, line, why
        super().__init__(path)

    def __str__(self) -> str:
        where = self.path if self.line is None else f"{self.path}:{self.line}"
        return f"{where}: {self.why}."


class CheckpointInvalidError(EttrainError):
    """A checkpoint that is not whole, or not what it says it is."""

    exit_code = 7

    def __init__(self, where: str, why: str) -> None:
        self.where, self.why = where, why
        super().__init__(where, why)

    def __str__(self) -> str:
        return f"{self.where}: {self.why}."


class CheckpointSaveError(EttrainError):
    """A checkpoint that could not be saved. The one before it is untouched."""

    exit_code = 8


class PublishFailedError(EttrainError):
    """A model that was asked for is not published; the one before it still is."""

    exit_code = 75

    def __init__(self, folder: str, state: str, why: str, log: str) -> None:
        self.folder, self.state, self.why, self.log = folder, state, why, log
        super().__init__(folder, state, why, log)

    def __str__(self) -> str:
        why = f": {self.why}" if self.why else ""
        name = self.folder.rpartition("/")[2]
        return f"{name} is not published, {self.state}{why}. The model before it stays current. Log: {self.log}. Again: ett publish retry {self.folder}"


class LawError(EttrainError):
    """The accounting contradicts itself: a defect of ettrain. It is raised, never smoothed over."""

    exit_code = 70


class MissingExtraError(EttrainError):
    """An optional dependency is not installed."""

    exit_code = 6

    def __init__(self, extra: str, needed_for: str) -> None:
        self.extra, self.needed_for = extra, needed_for
        super().__init__(extra)

    def __str__(self) -> str:
        return f"{self.needed_for} needs an extra: pip install 'ettrain[{self.extra}]'"

"""How often the jobs of a runs folder were interrupted: counted from the journals of one, read from what the others wrote at their end.

Called by `ett run` before each attempt and at the end. Bounded, however many jobs the folder holds. Not here: what it means for the
interval between checkpoints (`predict`).
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from ettrain import learnedfailures
from ettrain.account.diagnosis import stop_was_saved
from ettrain.account.history import JobHistory
from ettrain.account.ledger import Ledger, account
from ettrain.errors import EttrainError
from ettrain.jobpaths import JOB_NAME, JobPaths
from ettrain.jobreader import JobReader
from ettrain.lifecycle import FAILURE, PREEMPTION
from ettrain.predict.failures import Experience

MAX_JOBS: Final = 64
"""So many of the other jobs count, those that ended last."""
_ODD: Final = (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError)
COUNTED: Final = (FAILURE, PREEMPTION)
"""Ends that saving more often would have made cheaper. A mistake in the program comes again, and a stop by its user was wanted."""


def before_attempt(job: JobPaths) -> None:
    """Leave for the attempt that is about to begin what this job and the others have been through."""
    own = Experience(failures=0, exposure_s=0.0)
    if job.attempt_names():
        with contextlib.suppress(EttrainError, OSError, *_ODD):  # whatever is wrong with a journal, the attempt begins
            history = JobReader(job).read()
            own = of_job(history, account(history).ledger)
    learnedfailures.write(job, own, others(job))


def at_end(job: JobPaths, history: JobHistory, ledger: Ledger) -> None:
    """Write down what the job has been through, for the others."""
    told = learnedfailures.read(job)
    learnedfailures.write(job, of_job(history, ledger), told.fleet if told is not None else ())


def of_job(history: JobHistory, ledger: Ledger) -> Experience:
    """What a job has been through. A planned stop before which it saved cost it nothing, and is none of it."""
    counted = [incident for incident in ledger.incidents if incident.diagnosis.kind in COUNTED]
    failures = sum(stop_was_saved(history.attempts[incident.attempt]) is not True for incident in counted)
    exposure_ns = sum(attempt.end - attempt.start for attempt in ledger.attempts)
    return Experience(failures=failures, exposure_s=exposure_ns / 1e9, devices=max(1, ledger.devices))


def others(job: JobPaths) -> list[Experience]:
    """What the other jobs of the same runs folder had been through when they last wrote it down."""
    found: list[tuple[float, Path]] = []
    with contextlib.suppress(OSError), os.scandir(job.root.parent) as entries:
        for entry in entries:
            if entry.name != job.name and JOB_NAME.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    found.append((JobPaths(Path(entry.path)).learned(learnedfailures.WHAT).stat().st_mtime, Path(entry.path)))
    newest = [path for _, path in sorted(found, reverse=True)[:MAX_JOBS]]
    lessons = [learnedfailures.read(JobPaths(path)) for path in newest]
    return [told.own for told in lessons if told is not None and told.own.exposure_s > 0]

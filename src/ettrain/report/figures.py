"""Which figures a source can carry: the vocabulary of `JobHistory.supports`, and the one question asked of it.

Our own journals carry all of them; a foreign log (Slurm, MLPerf, ...) says which. What a source cannot carry is null in the
JSON and 'not in this source' in the text, never a guess.
"""

from __future__ import annotations

from typing import Final

from ettrain.account.history import JobHistory

FIGURES: Final[dict[str, str]] = {
    "ett": "effective training time and the leaves",
    "tts": "time to start",
    "ttr": "time to recover and its parts",
    "ttc": "time to catch up",
    "failures": "number of failures and of preemptions",
    "unsaved": "unsaved training, repeated work, work at risk",
    "time_to_shut_down": "time to shut down",
    "checkpoint_blocking": "time in which a save kept the training loop",
    "queue": "time in the queue before the first allocation",
    "devices": "number of devices and device time",
    "incidents": "the list of interruptions",
}
"""Figure -> what it covers."""


def can(job: JobHistory, *names: str) -> bool:
    """Whether the job's source can carry all of these figures."""
    return job.supports is None or all(name in job.supports for name in names)


def carried(job: JobHistory) -> tuple[str, ...]:
    """The figures that the job's source can carry, in the order of `FIGURES`."""
    return tuple(name for name in FIGURES if can(job, name))


def missing(job: JobHistory) -> tuple[str, ...]:
    """The figures that it cannot."""
    return tuple(name for name in FIGURES if not can(job, name))

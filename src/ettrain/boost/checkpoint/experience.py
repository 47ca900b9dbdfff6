"""How often this job must be expected to fail, by what `ett run` left for it before the attempt; and the record of the interval.

Not here: counting failures, which `ett run` does from the journals (`ettrain.experience`), and the estimate (`predict.failures`).
"""

from __future__ import annotations

import os
from pathlib import Path

from ettrain.boost.checkpoint.interval import Interval
from ettrain.jobpaths import JobPaths
from ettrain.learnedfailures import read
from ettrain.predict.failures import Experience, Mttf, expect
from ettrain.record.guard import guard
from ettrain.record.recorder import now, recorder
from ettrain.settings import ENV_JOB_DIR, value_of


def expected_failures(ranks: int) -> Mttf:
    """Mean time between failures of this job; an assumption outside `ett run`.

    Args:
        ranks: how many train.
    """
    devices = max(1, ranks * int(value_of("devices_per_rank")))
    folder = os.environ.get(ENV_JOB_DIR)
    lessons = read(JobPaths(Path(folder))) if folder else None
    if lessons is None:
        return expect(Experience(failures=0, exposure_s=0.0, devices=devices))
    return expect(lessons.own, lessons.fleet, devices=devices)


def record_interval(interval: Interval) -> None:
    """Write down how often is saved now, for `ett watch`. To be called when training begins and after each save."""
    try:
        told = {"every": interval.kind, "seconds": interval.seconds, "steps": interval.steps or None, "why": interval.why}
        recorder.emit({"k": "interval", "t": now(), **told})
    except Exception as error:  # noqa: BLE001 - the guard's rule
        guard.fault("checkpoint interval", error)

"""RUNS/<job>/learned/failures.json: what a job has been through, and what other jobs had been when its last attempt began.

Written by `ett run` alone, before each attempt and at the end; read in the training process to decide how often to save. What cannot be
read is not known. Not here: counting, see `experience`.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ettrain.jobpaths import JobPaths
from ettrain.predict.failures import Experience

WHAT: Final = "failures"
_ODD: Final = (KeyError, TypeError, ValueError, AttributeError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lessons:
    """What the file holds."""

    own: Experience
    fleet: tuple[Experience, ...] = ()


def read(job: JobPaths) -> Lessons | None:
    """The file's content; None where there is none, or none that can be read."""
    try:
        told = json.loads(job.learned(WHAT).read_text(encoding="utf-8"))
        return Lessons(own=_experience(told["own"]), fleet=tuple(map(_experience, told["fleet"])))
    except (OSError, *_ODD):
        return None


def write(job: JobPaths, own: Experience, fleet: Iterable[Experience]) -> None:
    """Replace the file as a whole; that it cannot be written is no error."""
    told = {"schema": 1, "own": _as_json(own), "fleet": [_as_json(other) for other in fleet]}
    path = job.learned(WHAT)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(told) + "\n", encoding="utf-8")
        os.replace(temporary, path)


def _experience(told: Mapping[str, Any]) -> Experience:
    failures, exposure_s, devices = int(told["failures"]), float(told["exposure_s"]), int(told["devices"])
    if failures < 0 or not 0 <= exposure_s < 1e12 or devices < 1:
        raise ValueError(told)
    return Experience(failures=failures, exposure_s=exposure_s, devices=devices)


def _as_json(one: Experience) -> dict[str, Any]:
    return {"failures": one.failures, "exposure_s": round(one.exposure_s, 3), "devices": one.devices}

"""The interruptions of a job, one by one: why, what they cost, when the job was back where it had been."""

from __future__ import annotations

from dataclasses import dataclass

from ettrain.account.book import Book
from ettrain.account.diagnosis import Diagnosis, diagnose
from ettrain.account.frames import Frame
from ettrain.account.history import AttemptHistory, JobHistory
from ettrain.account.rollback import Lineage, step_time
from ettrain.lifecycle import DETECT, RESCHEDULE, UNSAVED


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One interruption. Times in ns."""

    diagnosis: Diagnosis
    attempt: int
    at: int
    detect_ns: int
    reschedule_ns: int
    restart_ns: int
    time_to_recover_ns: int
    recovered: bool
    """Whether the next attempt trained; if not, the time goes up to that attempt's own end."""
    time_to_catch_up_ns: int | None
    unsaved_ns: int
    unsaved_error_ns: int
    resumed_step: int | None
    resume_source: str


def steps_of(attempt: AttemptHistory) -> int:
    """Steps counted by the attempt."""
    return max((rank.steps for rank in attempt.ranks), default=0)


def recovery_of(number: int, frames: list[Frame], end: int) -> tuple[int, int]:
    """The stretch from the stop of attempt `number` to the next one's first step, or to that one's own stop; else to the job's end."""
    stopped = frames[number].stopped
    if number + 1 == len(frames):
        return stopped, end
    following = frames[number + 1]
    first = following.first_step_t
    return stopped, following.stopped if first is None else min(first, following.stopped)


def incidents_of(job: JobHistory, frames: list[Frame], book: Book, lineage: Lineage, end: int) -> tuple[Incident, ...]:
    """Every attempt that ended before the job was done.

    Args:
        end: the job's end.
    """
    incidents: list[Incident] = []
    reached = 0
    for number, frame in enumerate(frames):
        attempt = job.attempts[number]
        reached = max(reached, lineage.maps[number].at(steps_of(attempt)))
        if not frame.interrupted:
            continue
        stopped, recovered = recovery_of(number, frames, end)
        trained = number + 1 < len(frames) and frames[number + 1].first_step_t is not None
        resume = lineage.resumes[number + 1] if number + 1 < len(frames) else None
        incidents.append(
            Incident(
                diagnosis=diagnose(attempt, frame),
                attempt=number,
                at=stopped,
                detect_ns=book.sum_of(stopped, recovered, DETECT),
                reschedule_ns=book.sum_of(stopped, recovered, RESCHEDULE),
                restart_ns=book.sum_of(stopped, recovered, "failure/restart/"),
                time_to_recover_ns=book.idle(stopped, recovered),
                recovered=trained,
                time_to_catch_up_ns=_catch_up(job, number, lineage, reached, stopped) if trained else None,
                unsaved_ns=sum(book.sum_of(low, high, UNSAVED) for low, high in lineage.lost_by(number)),
                unsaved_error_ns=resume.error_ns if resume is not None else 0,
                resumed_step=resume.step if resume is not None and resume.source != "no step" else None,
                resume_source=resume.source if resume is not None else "not resumed",
            )
        )
    return tuple(incidents)


def _catch_up(job: JobHistory, number: int, lineage: Lineage, reached: int, since: int) -> int | None:
    """From the stop until a later attempt is back at the step reached; None where none ever was."""
    for later in range(number + 1, len(job.attempts)):
        if lineage.resumes[later].source == "no step":
            continue
        ranks = job.attempts[later].ranks
        local = lineage.maps[later].local_of(reached, steps_of(job.attempts[later]))
        if local is None and lineage.resumes[later].step > reached:
            local = 1
        found = None if local is None else step_time(ranks, max(1, local))
        if found is not None:
            return found[0] - since
    return None

"""Per attempt: when its ranks were up, when productive work stopped, how it ended. Decides nothing about categories."""

from __future__ import annotations

from dataclasses import dataclass

from ettrain.account.history import NO_LIMIT, AttemptHistory, JobHistory, RankHistory


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The bounds of one attempt, in ns on the job's clock: start <= up <= stopped <= end."""

    number: int
    start: int
    up: int
    """Creation of the first rank's process; `end` if there never was one."""
    stopped: int
    """Productive work stopped here and what follows is `detect`; `end` where nothing broke."""
    end: int
    done: bool
    """It ended in good order: the program came to its end."""
    interrupted: bool
    """It ended before the job was done."""
    restart: bool
    """It follows an interruption: its start stages are done again."""
    running: bool
    hung: bool
    """It was silent for longer than any step takes before it ended (or is so now)."""
    first_step_t: int | None
    """End of the first step: every rank that steps has finished one."""
    last_step_t: int | None
    culprit: RankHistory | None
    """The rank that stopped first."""


def frames_of(job: JobHistory) -> list[Frame]:
    """One frame per attempt, in order and disjoint; a later attempt never begins before the one before has ended."""
    return [_frame(job, number) for number in range(len(job.attempts))]


def progress_of(rank: RankHistory, until: int) -> int:
    """Last instant up to `until` at which the rank finished a step or a stage, or was inside one."""
    if rank.open_stage is not None and rank.end >= until:
        return until
    latest = min(rank.last_step_t or 0, until)
    for span in rank.spans:
        if span.start < until:
            latest = max(latest, min(span.end, until))
    return latest


def _frame(job: JobHistory, number: int) -> Frame:
    attempt = job.attempts[number]
    following = job.attempts[number + 1] if number + 1 < len(job.attempts) else None
    last = following is None
    running = attempt.end is None and last and job.running
    end = max(job.now if running else _end_of(attempt), attempt.start)
    nobody_up = end if attempt.failed_t is None else min(max(attempt.failed_t, attempt.start), end)
    up = min([min(max(rank.start, attempt.start), end) for rank in attempt.ranks], default=nobody_up)
    done = attempt.code == 0 and not attempt.ended_by and not attempt.sent
    done = done and not running
    interrupted = not running and not (done and (following is None or following.continues))
    stopped, culprit, hung = end, None, False
    if not done:
        stopped, culprit, hung = _stop(attempt, end, running=running)
    firsts = [rank.first_step_t for rank in attempt.ranks if rank.first_step_t is not None]
    lasts = [rank.last_step_t for rank in attempt.ranks if rank.last_step_t is not None]
    return Frame(
        number=number,
        start=attempt.start,
        up=up,
        stopped=min(max(stopped, up), end),
        end=end,
        done=done,
        interrupted=interrupted,
        restart=number > 0 and not attempt.continues,
        running=running,
        hung=hung,
        first_step_t=min(max(firsts), end) if firsts else None,
        last_step_t=min(max(lasts), end) if lasts else None,
        culprit=culprit,
    )


def _end_of(attempt: AttemptHistory) -> int:
    if attempt.end is not None:
        return attempt.end
    return max([attempt.start] + [rank.end for rank in attempt.ranks])


def _stop(attempt: AttemptHistory, end: int, *, running: bool) -> tuple[int, RankHistory | None, bool]:
    """(instant, rank that stopped first, whether by silence) for an attempt that did not simply finish."""
    stops = [(t, rank) for rank in attempt.ranks if (t := _rank_stop(rank, attempt, running=running)) is not None and t <= end]
    stopped, culprit = min(stops, key=lambda stop: (stop[0], not _told_why(stop[1]), stop[1].rank), default=(end, None))
    if attempt.failed_t is not None and attempt.failed_t < stopped:
        stopped, culprit = attempt.failed_t, None
    silent = _silent_since(attempt, stopped)
    if silent is not None:
        return silent, culprit or _quietest(attempt), True
    return stopped, culprit, False


def _told_why(rank: RankHistory) -> bool:
    """Whether anything is known of why it ended badly: of ranks that stopped together, such a one is named."""
    return rank.error is not None or rank.code not in (None, 0)


def _rank_stop(rank: RankHistory, attempt: AttemptHistory, *, running: bool) -> int | None:
    if rank.alive:
        return None
    if rank.error is not None:
        return min(rank.error.t, rank.end)
    if rank.died:
        return rank.end if rank.exit_t is None else min(rank.exit_t, rank.end)
    if running:
        return None
    return rank.exit_t if attempt.code != 0 or attempt.sent else None


def _silent_since(attempt: AttemptHistory, until: int) -> int | None:
    """Since when no rank made progress, where that is longer than a step takes; None if some did, or none ever stepped."""
    stepped = [rank for rank in attempt.ranks if rank.last_step_t is not None]
    if not stepped:
        return None
    limit = max(rank.limit_ns for rank in stepped)
    if limit >= NO_LIMIT:
        return None
    if any(rank.exit_t is not None and rank.exit_t <= until and not rank.died for rank in stepped):
        return None
    latest = max(progress_of(rank, until) for rank in stepped)
    return latest if until - latest > limit else None


def _quietest(attempt: AttemptHistory) -> RankHistory | None:
    stepped = [rank for rank in attempt.ranks if rank.last_step_t is not None]
    return min(stepped, key=lambda rank: (rank.steps, rank.last_step_t or 0), default=None)

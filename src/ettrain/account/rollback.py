"""Which training survived: where each attempt resumed, and which stretches of time that made vain.

An attempt resumes from the newest checkpoint of this job that it loaded before its first step; failing that, from the step
the program names; failing that, from nothing. All training between the snapshot's instant and the attempt's begin is unsaved.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from ettrain.account.frames import Frame
from ettrain.account.history import AttemptHistory, IdentityKey, JobHistory, Load, RankHistory, Save

LostWindow = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """From where one attempt went on."""

    step: int
    """Global step it starts at: its first step is the next one."""
    snapshot: int | None
    """Instant up to which earlier work survives; None = nothing survives."""
    error_ns: int
    """How far `snapshot` may be off."""
    source: str
    """'start', 'fresh', 'checkpoint', 'said', or 'no step' where the attempt never trained."""


@dataclass(slots=True, kw_only=True)
class Lineage:
    """The job's steps across its attempts."""

    resumes: list[Resume]
    lost: list[LostWindow] = field(default_factory=list)
    """Disjoint, in order: training inside them is unsaved."""
    losses: dict[int | None, list[LostWindow]] = field(default_factory=dict)
    """The same stretches by the attempt whose interruption lost them first; None = a roll-back inside a running process."""
    last_durable: int | None = None
    """Snapshot instant of the newest checkpoint that still counts."""
    saves: int = 0

    def lose(self, start: int, end: int, attempt: int | None) -> None:
        """Training in [start, end) is vain; what was not lost before is charged to `attempt`."""
        fresh = _without(start, end, self.lost)
        self.losses.setdefault(attempt, []).extend(fresh)
        self.lost = sorted([*self.lost, *fresh])


@dataclass(frozen=True, slots=True)
class _Known:
    save: Save
    step: int


class _Index:
    """The job's checkpoints so far, by each of their identities and by step."""

    def __init__(self) -> None:
        self._by_key: dict[IdentityKey, list[_Known]] = {}
        self.by_step: dict[int, list[_Known]] = {}

    def add(self, saves: list[_Known]) -> None:
        """Take further checkpoints, later ones last."""
        for known in saves:
            self.by_step.setdefault(known.step, []).append(known)
            for key in known.save.identity:
                self._by_key.setdefault(key, []).append(known)

    def match(self, load: Load) -> _Known | None:
        """The latest checkpoint that is the file loaded: by the strongest identity that any of them shares with it."""
        for key in load.identity:
            for known in reversed(self._by_key.get(key, [])):
                if known.save.durable is not None and known.save.durable <= load.t:
                    return known
        return None


def lineage_of(job: JobHistory, frames: list[Frame]) -> Lineage:
    """Follow the job through its attempts."""
    known = _Index()
    line = Lineage(resumes=[])
    last_trained = 0
    origin = frames[0].start if frames else 0
    position: int | None = origin
    for attempt, frame in zip(job.attempts, frames, strict=True):
        resume = _resume_of(attempt, frame, frames, job, line.resumes, known)
        line.resumes.append(resume)
        if resume.source in ("fresh", "checkpoint", "said"):
            since = origin if resume.snapshot is None else resume.snapshot
            line.lose(since, frame.start, last_trained)
            position = since if resume.snapshot is not None else frame.start
        found = _saves_of(attempt, resume.step)
        known.add(found)
        _roll_back_inside(attempt, known, resume, line)
        durable = [k.save.snapshot for k in found if k.save.durable is not None and k.save.durable <= frame.end]
        if durable:
            position = max(durable) if position is None else max(position, *durable)
        line.saves += len(found)
        if resume.source != "no step":
            last_trained = frame.number
    line.last_durable = position
    if frames and frames[-1].interrupted and position is not None:
        line.lose(position, frames[-1].end, last_trained)
    return line


def step_time(ranks: list[RankHistory], local_step: int) -> tuple[int, int] | None:
    """(instant, possible error in ns) at which all ranks had finished that many steps; None if they never had."""
    latest: tuple[int, int] | None = None
    for rank in ranks:
        if rank.steps == 0:
            continue
        if rank.steps < local_step:
            return None
        found = _rank_step_time(rank, local_step)
        if latest is None or found[0] > latest[0]:
            latest = found
    return latest


def _rank_step_time(rank: RankHistory, local_step: int) -> tuple[int, int]:
    index = bisect_left(rank.progress, local_step, key=lambda progress: progress.step)
    if index == len(rank.progress):
        t = rank.last_step_t if rank.last_step_t is not None else rank.end
        return t, 0
    after = rank.progress[index]
    if after.step == local_step:
        return after.t, 0
    first = rank.first_step_t if rank.first_step_t is not None else rank.start
    before_t, before_step = (rank.progress[index - 1].t, rank.progress[index - 1].step) if index else (first, 1)
    if local_step <= before_step or after.step <= before_step:
        return before_t, 0
    t = before_t + (after.t - before_t) * (local_step - before_step) // (after.step - before_step)
    return t, max(t - before_t, after.t - t)


def _resume_of(
    attempt: AttemptHistory,
    frame: Frame,
    frames: list[Frame],
    job: JobHistory,
    resumes: list[Resume],
    known: _Index,
) -> Resume:
    stepped = [rank for rank in attempt.ranks if rank.steps]
    said = _said_base(stepped)
    if not stepped:
        return Resume(step=resumes[-1].step if resumes else 0, snapshot=None, error_ns=0, source="no step")
    loads = [load for rank in attempt.ranks for load in rank.loads if load.local_step == 0]
    matches = [match for load in loads if (match := known.match(load)) is not None]
    if matches:
        best = max(matches, key=lambda match: (match.step, -match.save.snapshot))
        step = best.step if said is None else said
        return Resume(step=step, snapshot=best.save.snapshot, error_ns=0, source="checkpoint")
    if frame.number == 0:
        return Resume(step=said or 0, snapshot=None, error_ns=0, source="start")
    if said:
        at = _time_of_global_step(said, job, frames, resumes, known)
        if at is not None:
            return Resume(step=said, snapshot=at[0], error_ns=at[1], source="said")
        return Resume(step=said, snapshot=None, error_ns=0, source="fresh")
    if all(earlier.source == "no step" for earlier in resumes):
        return Resume(step=0, snapshot=None, error_ns=0, source="start")
    return Resume(step=0, snapshot=None, error_ns=0, source="fresh")


def _said_base(ranks: list[RankHistory]) -> int | None:
    """Global step at which the attempt began, from what the program said; None if it said nothing."""
    bases = [first.step - first.local_step for rank in ranks for first in rank.said[:1]]
    return max(0, max(bases)) if bases else None


def _time_of_global_step(
    step: int, job: JobHistory, frames: list[Frame], resumes: list[Resume], known: _Index
) -> tuple[int, int] | None:
    saved = [k for k in known.by_step.get(step, ()) if k.save.durable is not None]
    if saved:
        return max(k.save.snapshot for k in saved), 0
    for number in range(len(resumes) - 1, -1, -1):
        local = step - resumes[number].step
        if resumes[number].source == "no step" or local < 0:
            continue
        if local == 0:
            return frames[number].start, 0
        found = step_time(job.attempts[number].ranks, local)
        if found is not None:
            return found
    return None


def _saves_of(attempt: AttemptHistory, base: int) -> list[_Known]:
    saves = [_Known(save, base + save.local_step) for rank in attempt.ranks for save in rank.saves]
    saves.sort(key=lambda known: known.save.snapshot)
    return saves


def _roll_back_inside(attempt: AttemptHistory, known: _Index, resume: Resume, line: Lineage) -> None:
    """A checkpoint loaded while training, with steps after it, takes back what was trained since its snapshot."""
    for rank in attempt.ranks:
        for load in rank.loads:
            if load.local_step == 0 or rank.steps <= load.local_step:
                continue
            match = known.match(load)
            if match is not None and match.step < resume.step + load.local_step:
                line.lose(match.save.snapshot, load.t, None)


def _without(start: int, end: int, windows: list[LostWindow]) -> list[LostWindow]:
    """[start, end) less the windows, which are disjoint and in order."""
    pieces: list[LostWindow] = []
    for low, high in windows:
        if high <= start or low >= end:
            continue
        if low > start:
            pieces.append((start, low))
        start = max(start, high)
    if start < end:
        pieces.append((start, end))
    return pieces

"""Which training survived: where each attempt resumed, and which stretches of time that made vain.

An attempt resumes from the newest checkpoint of this job that it loaded before its first step; failing that, from the step
the program names; failing that, from nothing. All training between the snapshot's instant and the attempt's begin is unsaved.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from ettrain.account.frames import Frame
from ettrain.account.history import AttemptHistory, IdentityKey, JobHistory, Load, RankHistory, Said, Save

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
    """'start', 'fresh', 'checkpoint', 'said', or 'no step' where the attempt never trained and so changed nothing."""


class Lineage:
    """The job's steps across its attempts, and which of its training is in its state now.

    Attributes:
        resumes: from where each attempt went on.
        maps: per attempt, which global step its counted steps are.
        lost: disjoint, in order: training inside them is unsaved.
        last_durable: snapshot instant of the newest checkpoint that counts; where there is none, the begin of what it would protect.
        durable_step: global steps that it holds.
        saves: checkpoints seen being saved; the parts that several ranks write of one count once.
    """

    def __init__(self, origin: int) -> None:
        self.resumes: list[Resume] = []
        self.maps: list[StepMap] = []
        self.lost: list[LostWindow] = []
        self.last_durable = origin
        self.durable_step = 0
        self.saves = 0
        self._origin = origin
        self._states: list[tuple[int, list[LostWindow]]] = [(origin, [])]
        self._charged: list[tuple[LostWindow, int | None]] = []
        self._ever: list[LostWindow] = []

    def go_back(self, snapshot: int | None, now: int, attempt: int | None) -> None:
        """At `now` the job's state became that of `snapshot` again (None: as at the very start).

        What was lost at the snapshot's instant still is, and all since; what was lost only in between, by a detour from an older
        checkpoint, is there again. What was never lost before is charged to the interruption of `attempt` (None: to none).
        """
        self._become(self._lost_at(snapshot, now), now, attempt)

    def detour(self, snapshot: int | None, frame: Frame) -> None:
        """An attempt went on from `snapshot` and held that state, but finished no step and so left the job's state as it was."""
        self._states.append((frame.start, self._lost_at(snapshot, frame.start)))
        begun = [] if frame.running else [(frame.start, frame.end)]
        self._become(_merged([*self.lost, *begun]), frame.end, frame.number if frame.interrupted else None)

    def _become(self, lost: list[LostWindow], now: int, attempt: int | None) -> None:
        self.lost = lost
        self._states.append((now, lost))
        self._charged.extend((piece, attempt) for piece in _without(lost, self._ever))
        self._ever = _merged([*self._ever, *lost])

    def _lost_at(self, snapshot: int | None, now: int) -> list[LostWindow]:
        since = self._origin if snapshot is None else snapshot
        before = next(lost for t, lost in reversed(self._states) if t <= since or t == self._origin)
        return _merged([*before, (since, now)])

    def lost_by(self, attempt: int | None) -> list[LostWindow]:
        """What the interruption of that attempt lost first; None: what roll-backs inside running processes did."""
        mine = [window for window, by in self._charged if by == attempt]
        return [piece for window in mine for piece in _inside(window, self.lost)]


@dataclass(frozen=True, slots=True)
class _Known:
    save: Save
    step: int
    rank: int


class _Index:
    """The job's checkpoints so far, by each of their identities and by step."""

    def __init__(self) -> None:
        self._by_key: dict[IdentityKey, list[_Known]] = {}
        self.by_step: dict[int, list[_Known]] = {}

    def add(self, known: _Known) -> None:
        """Take a further checkpoint, taken after all before."""
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


class StepMap:
    """Global step numbers of one attempt: where its count of steps begins, and where it jumped.

    It jumps forward where the program says so, and back only with a checkpoint loaded while training: a program that numbers
    its steps anew in each epoch has not been rolled back.
    """

    def __init__(self, base: int) -> None:
        self._points: list[tuple[int, int]] = [(0, base)]

    def jump(self, local: int, step: int) -> None:
        """After `local` counted steps the global step is `step`."""
        self._points.append((local, step))

    def at(self, local: int) -> int:
        """Global step after that many counted steps."""
        start, step = next(point for point in reversed(self._points) if point[0] <= local)
        return step + local - start

    def local_of(self, step: int, steps: int) -> int | None:
        """The latest count, of up to `steps`, at which the global step was `step`; None if it never was."""
        until = steps
        for start, first in reversed(self._points):
            if start <= until and first <= step <= first + until - start:
                return start + step - first
            until = min(until, start)
        return None


def lineage_of(job: JobHistory, frames: list[Frame]) -> Lineage:
    """Follow the job through its attempts."""
    walk = _Walk(job, frames)
    for attempt, frame in zip(job.attempts, frames, strict=True):
        walk.follow(attempt, frame)
    line = walk.line
    if frames and frames[-1].interrupted:
        line.go_back(line.last_durable, frames[-1].end, walk.last_trained)
    elif frames and frames[-1].running and line.resumes[-1].source == "no step":
        line.go_back(line.last_durable, frames[-1].start, walk.last_trained)
    return line


class _Walk:
    """One walk through a job's attempts, in order."""

    def __init__(self, job: JobHistory, frames: list[Frame]) -> None:
        self.line = Lineage(frames[0].start if frames else 0)
        self.last_trained = 0
        self._job = job
        self._frames = frames
        self._known = _Index()

    def follow(self, attempt: AttemptHistory, frame: Frame) -> None:
        """Take the next attempt in."""
        line = self.line
        resume = self._resume_of(attempt, frame)
        line.resumes.append(resume)
        if resume.source == "no step":
            line.detour(resume.snapshot, frame)
        elif resume.source != "start":
            line.go_back(resume.snapshot, frame.start, self.last_trained)
            line.last_durable = frame.start if resume.snapshot is None else resume.snapshot
            line.durable_step = resume.step
        elif resume.source == "start":
            line.durable_step = resume.step
        found = self._follow_inside(attempt, resume.step)
        line.saves += len({known.step for known in found})
        if resume.source != "no step":
            snapshot, step = _newest_durable(found, frame.end)
            if snapshot > line.last_durable:
                line.last_durable, line.durable_step = snapshot, step
            self.last_trained = frame.number

    def _resume_of(self, attempt: AttemptHistory, frame: Frame) -> Resume:
        resumes = self.line.resumes
        stepped = [rank for rank in attempt.ranks if rank.steps]
        said = _said_base(stepped or attempt.ranks)
        loads = [load for rank in attempt.ranks for load in rank.loads if load.local_step == 0]
        matches = [match for load in loads if (match := self._known.match(load)) is not None]
        if matches:
            best = max(matches, key=lambda match: (match.step, -match.save.snapshot))
            step = best.step if said is None else said
            return Resume(step=step, snapshot=best.save.snapshot, error_ns=0, source="checkpoint" if stepped else "no step")
        if not stepped:
            return Resume(step=said or 0, snapshot=None, error_ns=0, source="no step")
        if frame.number == 0 or (not said and all(earlier.source == "no step" for earlier in resumes)):
            return Resume(step=said or 0, snapshot=None, error_ns=0, source="start")
        if attempt.continues and not said:
            before = self._job.attempts[frame.number - 1]
            step = self.line.maps[-1].at(max((rank.steps for rank in before.ranks), default=0))
            return Resume(step=step, snapshot=frame.start, error_ns=0, source="continued")
        at = self._time_of_step(said) if said else None
        if said and at is not None:
            return Resume(step=said, snapshot=at[0], error_ns=at[1], source="said")
        return Resume(step=said or 0, snapshot=None, error_ns=0, source="fresh")

    def _time_of_step(self, step: int) -> tuple[int, int] | None:
        """(instant, possible error) up to which earlier work survives a resumption at that step; None if it was never near it."""
        saved = [known.save.snapshot for known in self._known.by_step.get(step, ()) if known.save.durable is not None]
        if saved:
            return max(saved), 0
        trained = [number for number, resume in enumerate(self.line.resumes) if resume.source != "no step"]
        for number in reversed(trained):
            ranks = self._job.attempts[number].ranks
            local = self.line.maps[number].local_of(step, max(rank.steps for rank in ranks))
            if local == 0:
                return self._frames[number].start, 0
            if local is not None:
                return step_time(ranks, local, as_far=True)
        if not trained or step < self.line.resumes[trained[0]].step:
            return None
        # The program counts further than anything recorded: the last steps were not, or it counts otherwise. Nothing is lost then.
        last = self._frames[trained[-1]]
        at = last.stopped if last.last_step_t is None else min(last.last_step_t, last.stopped)
        return at, last.stopped - at

    def _follow_inside(self, attempt: AttemptHistory, base: int) -> list[_Known]:
        """Take an attempt's saves in, and its roll-backs.

        A checkpoint loaded while training, with steps after it, takes back what was trained since its snapshot.
        """
        steps = StepMap(base)
        self.line.maps.append(steps)
        happened: list[tuple[int, int, int, Save | Load | Said]] = []
        for rank in attempt.ranks:
            happened.extend((save.snapshot, 0, rank.rank, save) for save in rank.saves)
            happened.extend((load.t, 1, rank.rank, load) for load in rank.loads if 0 < load.local_step < rank.steps)
            happened.extend((said.t, 2, rank.rank, said) for said in rank.said)
        happened.sort(key=lambda event: event[:3])
        found: list[_Known] = []
        for t, _, number, event in happened:
            if isinstance(event, Save):
                found.append(_Known(event, steps.at(event.local_step), number))
                self._known.add(found[-1])
            elif isinstance(event, Load):
                match = self._known.match(event)
                if match is not None and match.step != steps.at(event.local_step):
                    self.line.go_back(match.save.snapshot, t, None)
                    steps.jump(event.local_step, match.step)
            elif event.step > steps.at(event.local_step):
                steps.jump(event.local_step, event.step)
        return found


def step_time(ranks: list[RankHistory], local_step: int, *, as_far: bool = False) -> tuple[int, int] | None:
    """(instant, possible error in ns) at which all ranks had finished that many steps.

    Args:
        as_far: a rank that never got there counts with its last step; without it the answer is then None.
    """
    latest: tuple[int, int] | None = None
    for rank in ranks:
        if rank.steps == 0:
            continue
        if rank.steps < local_step and not as_far:
            return None
        found = _rank_step_time(rank, min(local_step, rank.steps))
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


def _said_base(ranks: list[RankHistory]) -> int | None:
    """Global step at which the attempt began, from what the program said; None if it said nothing."""
    bases = [first.step - first.local_step for rank in ranks for first in rank.said[:1]]
    return max(0, *bases) if bases else None


def _newest_durable(saves: list[_Known], until: int) -> tuple[int, int]:
    """(snapshot, step) of the newest checkpoint that was durable by then, of the parts that ranks wrote the earliest; 0s if there is none."""
    durable = [known for known in saves if known.save.durable is not None and known.save.durable <= until]
    newest = max(durable, key=lambda known: known.save.snapshot, default=None)
    parts = {known.rank: known.save.snapshot for known in durable if newest and known.save.local_step == newest.save.local_step}
    return min(parts.values(), default=0), newest.step if newest is not None else 0


def _without(windows: list[LostWindow], others: list[LostWindow]) -> list[LostWindow]:
    """The windows less the others; both are disjoint and in order."""
    pieces: list[LostWindow] = []
    index = 0
    for begin, end in windows:
        start = begin
        while index < len(others) and others[index][1] <= start:
            index += 1
        at = index
        while at < len(others) and others[at][0] < end:
            low, high = others[at]
            if low > start:
                pieces.append((start, low))
            start = max(start, high)
            at += 1
        if start < end:
            pieces.append((start, end))
    return pieces


def _inside(window: LostWindow, windows: list[LostWindow]) -> list[LostWindow]:
    """The parts of `window` that lie inside the windows."""
    start, end = window
    return [(max(low, start), min(high, end)) for low, high in windows if low < end and high > start]


def _merged(windows: list[LostWindow]) -> list[LostWindow]:
    """The same instants as disjoint windows, in order."""
    merged: list[LostWindow] = []
    for low, high in sorted(windows):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        elif low < high:
            merged.append((low, high))
    return merged

"""The numbers of a job, and the laws they obey.

Laws, checked at every call (a broken one raises LawError): the slices cover [first attempt's start, end) exactly; the leaves'
wall time and the effective time add up to the wall time; the leaves' device time adds up to the device wall time; the formula's
residual is exactly what its parts say. `docs/accounting.md` explains each figure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ettrain.account.diagnosis import Diagnosis, diagnose
from ettrain.account.frames import Frame, frames_of
from ettrain.account.history import AttemptHistory, JobHistory
from ettrain.account.rollback import Lineage, Resume, lineage_of, step_time
from ettrain.account.timeline import LeafTable, Tiles, tile_rank, untold_rank
from ettrain.account.wallview import Slice, wall_slices
from ettrain.errors import LawError
from ettrain.lifecycle import DETECT, EFFECTIVE, FAILURE, PREEMPTION, RESCHEDULE, UNSAVED, component_of, leaf_path


@dataclass(slots=True, kw_only=True)
class Leaf:
    """One leaf of the tree of categories. Times in ns."""

    path: str
    component: str
    wall_ns: int = 0
    device_ns: int = 0
    repeated_ns: int = 0
    """The part of `wall_ns` that repeats what an earlier attempt had already done."""
    parts: dict[str, int] = field(default_factory=dict)
    """Finer labels -> wall ns; they add up to `wall_ns`, what has no label under ''."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    """One attempt, for people."""

    number: int
    name: str
    start: int
    end: int
    exit: str
    ranks: int
    first_step: int | None
    last_step: int | None
    resume: Resume
    running: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Everything that the accounting says about one job. Times in integer ns on the job's clock."""

    job: str
    status: str
    start: int
    end: int
    queue_ns: int | None
    effective_ns: int
    at_risk_ns: int
    devices: int
    device_wall_ns: int
    effective_device_ns: int
    leaves: tuple[Leaf, ...]
    time_to_start_ns: int
    trained: bool
    """Whether any step was finished at all."""
    time_to_shut_down_ns: int | None
    checkpoint_blocking_ns: int
    unsaved_ns: int
    repeated_work_ns: int
    residual: dict[str, int]
    """What `1 - (TTS + NoF x TTR)/E2E` leaves out: leaf -> ns."""
    incidents: tuple[Incident, ...]
    attempts: tuple[AttemptRow, ...]
    slices: tuple[tuple[int, int, str], ...]
    """The job's life: (start, end, path), neighbours with different paths."""
    saves: int
    steps: int
    """Global step reached."""
    step_sources: tuple[str, ...]

    @property
    def wall_ns(self) -> int:
        """From the first attempt's hardware to the last one's release."""
        return self.end - self.start

    @property
    def ett_pct(self) -> float | None:
        """The headline; None for a job of no duration."""
        return 100.0 * self.effective_ns / self.wall_ns if self.wall_ns else None

    @property
    def formula_pct(self) -> float | None:
        """`1 - (TTS + NoF x TTR)/E2E`, TTR being the mean over all interruptions."""
        if not self.wall_ns:
            return None
        return 100.0 * (self.wall_ns - self.time_to_start_ns - sum(i.time_to_recover_ns for i in self.incidents)) / self.wall_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A ledger with the tiles behind it, for whoever draws them."""

    ledger: Ledger
    frames: list[Frame]
    tiles: list[list[Tiles]]
    leaves: LeafTable
    lineage: Lineage


def account(job: JobHistory) -> Account:
    """Account for a whole job.

    Raises:
        LawError: the result contradicts itself.
    """
    frames = frames_of(job)
    leaves = LeafTable()
    tiles = [_tiles_of(attempt, frame, leaves, job) for attempt, frame in zip(job.attempts, frames, strict=True)]
    lineage = lineage_of(job, frames)
    slices = _job_slices(frames, tiles, leaves)
    book = _Book(leaves, lineage)
    for start, end, code, number in slices:
        book.wall(start, end, code, restart=number > 0)
    _device_view(book, frames, tiles, job)
    ledger = _ledger(job, frames, book, lineage, tiles)
    return Account(ledger=ledger, frames=frames, tiles=tiles, leaves=leaves, lineage=lineage)


def _tiles_of(attempt: AttemptHistory, frame: Frame, leaves: LeafTable, job: JobHistory) -> list[Tiles]:
    tiles = [tile_rank(rank, frame, leaves) for rank in attempt.ranks]
    if frame.first_step_t is None:
        told = {rank.rank for rank in attempt.ranks}
        missing = [number for number in range(attempt.world) if number not in told]
        tiles.extend(untold_rank(number, frame, job.devices_per_rank, leaves) for number in missing[: attempt.world - len(told)])
    if not tiles:
        tiles.append(untold_rank(0, frame, job.devices_per_rank, leaves))
    return tiles


def _job_slices(frames: list[Frame], tiles: list[list[Tiles]], leaves: LeafTable) -> list[tuple[int, int, int, int]]:
    """(start, end, code, attempt) of the whole job, gaps between attempts included."""
    slices: list[tuple[int, int, int, int]] = []
    gap = leaves.code(RESCHEDULE)
    for frame, ranks in zip(frames, tiles, strict=True):
        if slices and frame.start > slices[-1][1]:
            slices.append((slices[-1][1], frame.start, gap, frame.number))
        slices.extend((*piece, frame.number) for piece in wall_slices(ranks, leaves, frame.start, frame.end))
    position = frames[0].start if frames else 0
    for start, end, _, number in slices:
        if start != position or end <= start:
            raise LawError(f"attempt {number}: the job's slice [{start}, {end}) does not follow {position}")
        position = end
    return slices


class _Book:
    """Adds up wall and device time per leaf, training split into effective and unsaved."""

    def __init__(self, leaves: LeafTable, lineage: Lineage) -> None:
        self._pairs = leaves.pairs
        self._lost = lineage.lost
        self.leaves: dict[str, Leaf] = {}
        self.effective_ns = 0
        self.effective_device_ns = 0
        self.slices: list[tuple[int, int, str]] = []

    def wall(self, start: int, end: int, code: int, *, restart: bool) -> None:
        """Book one slice of the job's life."""
        leaf, part = self._pairs[code]
        if leaf != EFFECTIVE:
            self._book(start, end, leaf_path(leaf, restart=restart), part)
            return
        for low, high, lost in _split(start, end, self._lost):
            if lost:
                self._book(low, high, UNSAVED, "")
            else:
                self.effective_ns += high - low
                self._slice(low, high, EFFECTIVE)

    def device(self, start: int, end: int, code: int, devices: int, *, restart: bool) -> None:
        """Book one tile of one rank."""
        leaf, _ = self._pairs[code]
        if leaf != EFFECTIVE:
            self.leaf(leaf_path(leaf, restart=restart)).device_ns += (end - start) * devices
            return
        for low, high, lost in _split(start, end, self._lost):
            if lost:
                self.leaf(UNSAVED).device_ns += (high - low) * devices
            else:
                self.effective_device_ns += (high - low) * devices

    def _book(self, start: int, end: int, path: str, part: str) -> None:
        leaf = self.leaf(path)
        leaf.wall_ns += end - start
        leaf.parts[part] = leaf.parts.get(part, 0) + end - start
        if path == UNSAVED or path.startswith("failure/restart/"):
            leaf.repeated_ns += end - start
        self._slice(start, end, path)

    def _slice(self, start: int, end: int, path: str) -> None:
        if self.slices and self.slices[-1][2] == path and self.slices[-1][1] == start:
            self.slices[-1] = (self.slices[-1][0], end, path)
        else:
            self.slices.append((start, end, path))

    def leaf(self, path: str) -> Leaf:
        """The leaf of that path, made on first use."""
        found = self.leaves.get(path)
        if found is None:
            found = self.leaves[path] = Leaf(path=path, component=component_of(path))
        return found


def _split(start: int, end: int, windows: list[tuple[int, int]]) -> Iterable[tuple[int, int, bool]]:
    """Cut [start, end) at the windows: (low, high, whether inside one)."""
    for low, high in windows:
        if high <= start:
            continue
        if low >= end:
            break
        if low > start:
            yield start, low, False
            start = low
        yield start, min(end, high), True
        start = min(end, high)
    if start < end:
        yield start, end, False


def _device_view(book: _Book, frames: list[Frame], tiles: list[list[Tiles]], job: JobHistory) -> None:
    for number, frame in enumerate(frames):
        for rank in tiles[number]:
            for start, end, code in rank:
                book.device(start, end, code, rank.devices, restart=number > 0)
        if number + 1 < len(frames):
            gap = frames[number + 1].start - frame.end
            book.leaf(RESCHEDULE).device_ns += gap * _devices(tiles[number])


def _devices(ranks: list[Tiles]) -> int:
    return sum(rank.devices for rank in ranks)


def _ledger(job: JobHistory, frames: list[Frame], book: _Book, lineage: Lineage, tiles: list[list[Tiles]]) -> Ledger:
    start, end = (frames[0].start, frames[-1].end) if frames else (job.now, job.now)
    incidents = _incidents(job, frames, book, lineage)
    recoveries = [(i.at, _recovered_at(frames[i.attempt + 1] if i.attempt + 1 < len(frames) else None, frames[i.attempt])) for i in incidents]
    start_end = _start_end(frames, end)
    time_to_start = _idle_within(book.slices, start, start_end)
    residual = _residual(book.slices, start_end, recoveries)
    device_wall = sum((f.end - f.start) * _devices(t) for f, t in zip(frames, tiles, strict=True))
    device_wall += sum((b.start - a.end) * _devices(t) for a, b, t in zip(frames, frames[1:], tiles, strict=False))
    ledger = Ledger(
        job=job.name,
        status=_status(job, frames),
        start=start,
        end=end,
        queue_ns=None if job.submitted is None else max(0, start - job.submitted),
        effective_ns=book.effective_ns,
        at_risk_ns=_at_risk(book.slices, frames, lineage),
        devices=max((_devices(ranks) for ranks in tiles), default=0),
        device_wall_ns=device_wall,
        effective_device_ns=book.effective_device_ns,
        leaves=tuple(sorted(book.leaves.values(), key=lambda leaf: (-leaf.wall_ns, -leaf.device_ns, leaf.path))),
        time_to_start_ns=time_to_start,
        trained=any(frame.first_step_t is not None for frame in frames),
        time_to_shut_down_ns=_shut_down(frames),
        checkpoint_blocking_ns=sum(leaf.wall_ns for leaf in book.leaves.values() if "checkpoint" in leaf.path and "load" not in leaf.path),
        unsaved_ns=book.leaves[UNSAVED].wall_ns if UNSAVED in book.leaves else 0,
        repeated_work_ns=sum(leaf.repeated_ns for leaf in book.leaves.values()),
        residual=residual,
        incidents=incidents,
        attempts=tuple(_attempt_row(a, f, r, incidents) for a, f, r in zip(job.attempts, frames, lineage.resumes, strict=True)),
        slices=tuple(book.slices),
        saves=lineage.saves,
        steps=max((r.step + _steps(a) for a, r in zip(job.attempts, lineage.resumes, strict=True)), default=0),
        step_sources=tuple(sorted({rank.step_source for a in job.attempts for rank in a.ranks if rank.step_source})),
    )
    _check(ledger)
    return ledger


def _check(ledger: Ledger) -> None:
    wall = ledger.effective_ns + sum(leaf.wall_ns for leaf in ledger.leaves)
    if wall != ledger.wall_ns:
        raise LawError(f"job {ledger.job}: leaves add up to {wall} ns, the wall time is {ledger.wall_ns} ns")
    device = ledger.effective_device_ns + sum(leaf.device_ns for leaf in ledger.leaves)
    if device != ledger.device_wall_ns:
        raise LawError(f"job {ledger.job}: leaves add up to {device} device-ns, the device wall time is {ledger.device_wall_ns}")
    claimed = ledger.effective_ns + sum(ledger.residual.values()) + ledger.time_to_start_ns
    claimed += sum(incident.time_to_recover_ns for incident in ledger.incidents)
    if claimed != ledger.wall_ns:
        raise LawError(f"job {ledger.job}: formula and residual add up to {claimed} ns, the wall time is {ledger.wall_ns} ns")
    for leaf in ledger.leaves:
        if sum(leaf.parts.values()) != leaf.wall_ns:
            raise LawError(f"job {ledger.job}: the parts of {leaf.path} do not add up to it")


def _steps(attempt: AttemptHistory) -> int:
    return max((rank.steps for rank in attempt.ranks), default=0)


def _start_end(frames: list[Frame], end: int) -> int:
    """Where the time to start ends: the first attempt's first step, or its stop if it never finished one."""
    if not frames:
        return end
    first = frames[0]
    return first.stopped if first.first_step_t is None else min(first.first_step_t, first.stopped)


def _idle_within(slices: list[tuple[int, int, str]], start: int, end: int) -> int:
    """Time in [start, end) that is neither effective nor unsaved training."""
    return sum(
        min(high, end) - max(low, start) for low, high, path in slices if low < end and high > start and path not in (EFFECTIVE, UNSAVED)
    )


def _sum_within(slices: list[tuple[int, int, str]], start: int, end: int, wanted: str) -> int:
    return sum(min(high, end) - max(low, start) for low, high, path in slices if low < end and high > start and path.startswith(wanted))


def _residual(slices: list[tuple[int, int, str]], start_end: int, recoveries: list[tuple[int, int]]) -> dict[str, int]:
    """Non-effective time outside the start and the recoveries, and unsaved training inside them, per leaf."""
    result: dict[str, int] = {}
    claimed = sorted([(slices[0][0], start_end), *recoveries]) if slices else []
    for low, high, path in slices:
        if path == EFFECTIVE:
            continue
        pieces = _split(low, high, claimed) if path != UNSAVED else [(low, high, False)]
        amount = sum(b - a for a, b, inside in pieces if not inside)
        if amount:
            result[path] = result.get(path, 0) + amount
    return dict(sorted(result.items(), key=lambda item: -item[1]))


def _incidents(job: JobHistory, frames: list[Frame], book: _Book, lineage: Lineage) -> tuple[Incident, ...]:
    incidents: list[Incident] = []
    reached = 0
    for number, frame in enumerate(frames):
        attempt = job.attempts[number]
        reached = max(reached, lineage.resumes[number].step + _steps(attempt))
        if not frame.interrupted:
            continue
        following = frames[number + 1] if number + 1 < len(frames) else None
        resume = lineage.resumes[number + 1] if following is not None else None
        end = _recovered_at(following, frame)
        trained = following is not None and following.first_step_t is not None
        incidents.append(
            Incident(
                diagnosis=diagnose(attempt, frame),
                attempt=number,
                at=frame.stopped,
                detect_ns=_sum_within(book.slices, frame.stopped, end, DETECT),
                reschedule_ns=_sum_within(book.slices, frame.stopped, end, RESCHEDULE),
                restart_ns=_sum_within(book.slices, frame.stopped, end, "failure/restart/"),
                time_to_recover_ns=_idle_within(book.slices, frame.stopped, end),
                recovered=trained,
                time_to_catch_up_ns=_catch_up(job, number, lineage, reached, frame.stopped) if trained else None,
                unsaved_ns=_unsaved_by(number, lineage, book),
                unsaved_error_ns=resume.error_ns if resume is not None else 0,
                resumed_step=resume.step if resume is not None and resume.source != "no step" else None,
                resume_source=resume.source if resume is not None else "not resumed",
            )
        )
    return tuple(incidents)


def _recovered_at(following: Frame | None, frame: Frame) -> int:
    if following is None:
        return frame.end
    if following.first_step_t is None:
        return following.stopped
    return min(following.first_step_t, following.stopped)


def _catch_up(job: JobHistory, number: int, lineage: Lineage, reached: int, since: int) -> int | None:
    """From the stop until a later attempt is back at the step reached; None where none ever was."""
    for later in range(number + 1, len(job.attempts)):
        resume = lineage.resumes[later]
        if resume.source == "no step":
            continue
        local = max(1, reached - resume.step)
        found = step_time(job.attempts[later].ranks, local)
        if found is not None:
            return found[0] - since
    return None


def _unsaved_by(number: int, lineage: Lineage, book: _Book) -> int:
    """Unsaved training that the interruption of attempt `number` caused first."""
    return sum(_sum_within(book.slices, low, high, UNSAVED) for low, high in lineage.losses.get(number, ()))


def _at_risk(slices: list[tuple[int, int, str]], frames: list[Frame], lineage: Lineage) -> int:
    if not frames or not frames[-1].running or lineage.last_durable is None:
        return 0
    return _sum_within(slices, lineage.last_durable, frames[-1].end, EFFECTIVE)


def _shut_down(frames: list[Frame]) -> int | None:
    if not frames or frames[-1].running or frames[-1].interrupted or frames[-1].last_step_t is None:
        return None
    return frames[-1].end - frames[-1].last_step_t


def _status(job: JobHistory, frames: list[Frame]) -> str:
    if not frames:
        return "running" if job.running else "failed"
    last, attempt = frames[-1], job.attempts[-1]
    if last.running or job.running:
        return "running"
    if not last.interrupted:
        return "finished"
    return "failed" if diagnose(attempt, last).kind not in (PREEMPTION, "stop") else "stopped"


def _attempt_row(attempt: AttemptHistory, frame: Frame, resume: Resume, incidents: tuple[Incident, ...]) -> AttemptRow:
    steps = _steps(attempt)
    cause = next((i.diagnosis for i in incidents if i.attempt == frame.number), None)
    return AttemptRow(
        number=frame.number,
        name=attempt.name,
        start=frame.start,
        end=frame.end,
        exit="running" if frame.running else (cause.cls if cause is not None else "finished"),
        ranks=max(len({rank.rank for rank in attempt.ranks}), attempt.world),
        first_step=resume.step if steps else None,
        last_step=resume.step + steps - 1 if steps else None,
        resume=resume,
        running=frame.running,
    )


def number_of(ledger: Ledger, kind: str) -> int:
    """How many interruptions of a kind, e.g. `failure`."""
    return sum(incident.diagnosis.kind == kind for incident in ledger.incidents)


"""The numbers of a job, and the laws they obey.

Laws, checked at every call (a broken one raises LawError): the slices cover [first attempt's start, end) exactly; the leaves'
wall time and the effective time add up to the wall time; the leaves' device time adds up to the device wall time; the formula's
residual is exactly what its parts say. `docs/accounting.md` explains each figure.
"""

from __future__ import annotations

from dataclasses import dataclass

from ettrain.account.book import Book, Leaf, split
from ettrain.account.diagnosis import diagnose
from ettrain.account.frames import Frame, frames_of
from ettrain.account.history import AttemptHistory, JobHistory
from ettrain.account.incidents import Incident, incidents_of, recovery_of, steps_of
from ettrain.account.rollback import Lineage, Resume, StepMap, lineage_of
from ettrain.account.timeline import LeafTable, Tiles, tile_rank, untold_rank
from ettrain.account.wallview import wall_slices
from ettrain.errors import LawError
from ettrain.lifecycle import EFFECTIVE, PREEMPTION, RESCHEDULE, STOP, UNSAVED

__all__ = ["Account", "AttemptRow", "Incident", "Leaf", "Ledger", "account", "number_of"]

_BLOCKING = ("checkpoint_blocking", "final_checkpoint")


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
    end = _end_of(job, frames)
    leaves = LeafTable()
    tiles = [_tiles_of(attempt, frame, leaves, job) for attempt, frame in zip(job.attempts, frames, strict=True)]
    lineage = lineage_of(job, frames)
    book = Book(leaves, lineage.lost)
    for start, stop, code, number in _job_slices(frames, tiles, leaves, end):
        book.wall(start, stop, code, restart=number < len(frames) and frames[number].restart)
    device_wall = _device_view(book, frames, tiles, end)
    ledger = _ledger(job, frames, book, lineage, tiles, end=end, device_wall=device_wall)
    _check(ledger, book, lineage)
    return Account(ledger=ledger, frames=frames, tiles=tiles, leaves=leaves, lineage=lineage)


def _end_of(job: JobHistory, frames: list[Frame]) -> int:
    """The job's end, or now: a running job whose last attempt was interrupted waits for the next one."""
    if not frames:
        return job.now
    last = frames[-1]
    return max(job.now, last.end) if job.running and last.interrupted else last.end


def _tiles_of(attempt: AttemptHistory, frame: Frame, leaves: LeafTable, job: JobHistory) -> list[Tiles]:
    tiles = [tile_rank(rank, frame, leaves) for rank in attempt.ranks]
    if frame.first_step_t is None:
        told = {rank.rank for rank in attempt.ranks}
        missing = [number for number in range(attempt.world) if number not in told]
        tiles.extend(untold_rank(number, frame, job.devices_per_rank, leaves) for number in missing[: attempt.world - len(told)])
    if not tiles:
        tiles.append(untold_rank(0, frame, job.devices_per_rank, leaves))
    return tiles


def _job_slices(frames: list[Frame], tiles: list[list[Tiles]], leaves: LeafTable, end: int) -> list[tuple[int, int, int, int]]:
    """(start, end, code, attempt) of the whole job, gaps between attempts included."""
    slices: list[tuple[int, int, int, int]] = []
    gap = leaves.code(RESCHEDULE)
    position = frames[0].start if frames else end
    for frame, ranks in zip(frames, tiles, strict=True):
        if frame.start > position:
            slices.append((position, frame.start, gap, frame.number))
        slices.extend((*piece, frame.number) for piece in wall_slices(ranks, leaves, frame.start, frame.end))
        position = frame.end
    if position < end:
        slices.append((position, end, gap, len(frames)))
    position = frames[0].start if frames else end
    for start, stop, _, number in slices:
        if start != position or stop <= start:
            raise LawError(f"attempt {number}: the job's slice [{start}, {stop}) does not follow {position}")
        position = stop
    if position != end:
        raise LawError(f"the job's slices end at {position}, the job at {end}")
    return slices


def _device_view(book: Book, frames: list[Frame], tiles: list[list[Tiles]], end: int) -> int:
    """Book every rank's tiles; returns the device wall time: each attempt's devices from its start to the next one's."""
    total = 0
    for number, frame in enumerate(frames):
        for rank in tiles[number]:
            book.device(rank, restart=frame.restart)
        upto = frames[number + 1].start if number + 1 < len(frames) else end
        devices = _devices(tiles[number])
        if upto > frame.end:
            book.leaf(RESCHEDULE).device_ns += (upto - frame.end) * devices
        total += (upto - frame.start) * devices
    return total


def _devices(ranks: list[Tiles]) -> int:
    return sum(rank.devices for rank in ranks)


def _ledger(
    job: JobHistory, frames: list[Frame], book: Book, lineage: Lineage, tiles: list[list[Tiles]], *, end: int, device_wall: int
) -> Ledger:
    start = frames[0].start if frames else end
    incidents = incidents_of(job, frames, book, lineage, end)
    start_end = _start_end(frames, end)
    recoveries = [recovery_of(incident.attempt, frames, end) for incident in incidents]
    rows = zip(job.attempts, frames, lineage.resumes, lineage.maps, strict=True)
    return Ledger(
        job=job.name,
        status=_status(job, frames),
        start=start,
        end=end,
        queue_ns=None if job.submitted is None else max(0, start - job.submitted),
        effective_ns=book.effective_ns,
        at_risk_ns=book.sum_of(lineage.last_durable, end, EFFECTIVE) if frames and frames[-1].running else 0,
        devices=max((_devices(ranks) for ranks in tiles), default=0),
        device_wall_ns=device_wall,
        effective_device_ns=book.effective_device_ns,
        leaves=tuple(sorted(book.leaves.values(), key=lambda leaf: (-leaf.wall_ns, -leaf.device_ns, leaf.path))),
        time_to_start_ns=book.idle(start, start_end),
        trained=any(frame.first_step_t is not None for frame in frames),
        time_to_shut_down_ns=_shut_down(frames),
        checkpoint_blocking_ns=sum(leaf.wall_ns for leaf in book.leaves.values() if leaf.path.rsplit("/", 1)[-1] in _BLOCKING),
        unsaved_ns=book.leaves[UNSAVED].wall_ns if UNSAVED in book.leaves else 0,
        repeated_work_ns=sum(leaf.repeated_ns for leaf in book.leaves.values()),
        residual=_residual(book, start_end, recoveries),
        incidents=incidents,
        attempts=tuple(_attempt_row(attempt, frame, resume, steps, incidents) for attempt, frame, resume, steps in rows),
        slices=tuple(book.slices),
        saves=lineage.saves,
        steps=max((steps.at(steps_of(attempt)) for attempt, steps in zip(job.attempts, lineage.maps, strict=True)), default=0),
        step_sources=tuple(sorted({rank.step_source for a in job.attempts for rank in a.ranks if rank.step_source})),
    )


def _check(ledger: Ledger, book: Book, lineage: Lineage) -> None:
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
    inside = sum(book.sum_of(low, high, UNSAVED) for low, high in lineage.lost_by(None))
    charged = sum(incident.unsaved_ns for incident in ledger.incidents) + inside
    if charged != ledger.unsaved_ns:
        raise LawError(f"job {ledger.job}: {charged} ns unsaved by incidents and roll-backs, {ledger.unsaved_ns} ns in all")


def _start_end(frames: list[Frame], end: int) -> int:
    """Where the time to start ends: the first attempt's first step, or its stop if it never finished one."""
    if not frames:
        return end
    first = frames[0]
    return first.stopped if first.first_step_t is None else min(first.first_step_t, first.stopped)


def _residual(book: Book, start_end: int, recoveries: list[tuple[int, int]]) -> dict[str, int]:
    """Non-effective time outside the start and the recoveries, and unsaved training inside them, per leaf."""
    result: dict[str, int] = {}
    claimed = sorted([(book.slices[0][0], start_end), *recoveries]) if book.slices else []
    for low, high, path in book.slices:
        if path == EFFECTIVE:
            continue
        pieces = split(low, high, claimed) if path != UNSAVED else [(low, high, False)]
        amount = sum(b - a for a, b, inside in pieces if not inside)
        if amount:
            result[path] = result.get(path, 0) + amount
    return dict(sorted(result.items(), key=lambda item: -item[1]))


def _shut_down(frames: list[Frame]) -> int | None:
    lasts = [frame.last_step_t for frame in frames if frame.last_step_t is not None]
    if not lasts or frames[-1].running or frames[-1].interrupted:
        return None
    return frames[-1].end - max(lasts)


def _status(job: JobHistory, frames: list[Frame]) -> str:
    if not frames:
        return "running" if job.running else "failed"
    last, attempt = frames[-1], job.attempts[-1]
    if last.running or job.running:
        return "running"
    if not last.interrupted:
        return "finished"
    return "failed" if diagnose(attempt, last).kind not in (PREEMPTION, STOP) else "stopped"


def _attempt_row(
    attempt: AttemptHistory, frame: Frame, resume: Resume, steps: StepMap, incidents: tuple[Incident, ...]
) -> AttemptRow:
    counted = steps_of(attempt)
    cause = next((i.diagnosis for i in incidents if i.attempt == frame.number), None)
    return AttemptRow(
        number=frame.number,
        name=attempt.name,
        start=frame.start,
        end=frame.end,
        exit="running" if frame.running else (cause.cls if cause is not None else "finished"),
        ranks=max(len({rank.rank for rank in attempt.ranks}), attempt.world),
        first_step=resume.step if counted else None,
        last_step=steps.at(counted) - 1 if counted else None,
        resume=resume,
        running=frame.running,
    )


def number_of(ledger: Ledger, kind: str) -> int:
    """How many interruptions of a kind, e.g. `failure`."""
    return sum(incident.diagnosis.kind == kind for incident in ledger.incidents)


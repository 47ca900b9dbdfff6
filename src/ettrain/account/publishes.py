"""Models published off the devices: from journal records to typed data, what each cost, and how old the data in it was. Pure.

None of it is part of the job's wall time: it is time of processes that hold no device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from ettrain.account.assemble import identity_keys
from ettrain.account.history import NO_LIMIT, IdentityKey, JobHistory, PublishEvent
from ettrain.events import Record

PUBLISHED: Final = "published"
FAILED: Final = "failed"
PENDING: Final = "pending"
"""Asked for, and no publisher has begun."""
UNFINISHED: Final = "unfinished"
"""A publisher has begun and not ended: it is at work, or was killed."""
_ACTS: Final = ("asked", "began", "stage", "ended")


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """One model that was asked for. Times in ns on the job's clock."""

    id: str
    name: str
    outcome: str
    """`published`, `superseded`, `failed`, `pending` or `unfinished`."""
    place: str
    """The request's folder."""
    step: int | None
    version: str
    stage: str
    """What it is at, or ended at."""
    why: str
    tries: int
    asked: int | None
    switched: int | None
    """When it became current."""
    cpu_ns: int
    """Of all publishers' processes, as far as they lived to tell it."""
    wall_ns: int
    time_to_model_ns: int | None
    """From the instant up to which the checkpoint holds the training to the switch; None = one of them is not known."""
    after_last_step_ns: int | None
    """From the last step before it was asked for to the switch."""


def publish_event_of(record: Record, t: int, process: str) -> PublishEvent:
    """What a `publish` record tells.

    Args:
        record: it.
        t: its instant on the job's clock.
        process: which journal it stands in.

    Raises:
        KeyError, ValueError: it is none.
    """
    if record["act"] not in _ACTS:
        raise ValueError(record["act"])
    step, created = record.get("step"), record.get("created")
    texts = [str(record.get(key) or "") for key in ("name", "place", "stage", "outcome", "version", "why")]
    name, place, stage, outcome, version, why = texts
    checkpoint = identity_keys(record.get("ck") or {"path": record.get("checkpoint")})
    return PublishEvent(
        t=t, id=str(record["id"]), act=str(record["act"]), process=process, name=name, place=place, checkpoint=checkpoint, stage=stage,
        outcome=outcome, version=version, why=why, step=_number(step), created=_number(created), tries=_number(record.get("tries")) or 0,
        cpu_ns=_number(record.get("cpu")) or 0,
    )  # fmt: skip


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and 0 <= value < NO_LIMIT else None


def publishes_of(job: JobHistory) -> tuple[Publish, ...]:
    """All models that the job asked for, in the order in which it did."""
    by_id: dict[str, list[PublishEvent]] = {}
    for event in sorted(job.publish_events, key=lambda event: event.t):
        by_id.setdefault(event.id, []).append(event)
    return tuple(_publish(events, job) for events in by_id.values())


def _publish(events: Sequence[PublishEvent], job: JobHistory) -> Publish:
    last = events[-1]
    ended = next((event for event in reversed(events) if event.act == "ended"), None)
    over = last.act == "ended" or (ended is not None and ended.outcome != FAILED)
    outcome = ended.outcome if ended is not None and over else PENDING if last.act == "asked" else UNFINISHED
    asked = min((event.t for event in events if event.act == "asked"), default=None)
    told = ended if ended is not None and over else last
    switched = ended.t if ended is not None and outcome == PUBLISHED else None
    snapshot = _snapshot({key for event in events for key in event.checkpoint}, told.created, job, before=told.t)
    trained = _last_step(job, before=asked) if asked is not None else None
    return Publish(
        id=last.id, name=last.name, outcome=outcome, place=last.place, step=told.step, version=told.version, stage=told.stage, why=told.why,
        tries=max(event.tries for event in events), asked=asked, switched=switched, cpu_ns=_cpu(events), wall_ns=_wall(events),
        time_to_model_ns=switched - snapshot if switched is not None and snapshot is not None else None,
        after_last_step_ns=switched - trained if switched is not None and trained is not None else None,
    )  # fmt: skip


def _cpu(events: Sequence[PublishEvent]) -> int:
    """Each publisher's process tells its CPU time so far; the asker's is the training's own."""
    used: dict[str, int] = {}
    for event in events:
        if event.act != "asked":
            used[event.process] = max(used.get(event.process, 0), event.cpu_ns)
    return sum(used.values())


def _wall(events: Sequence[PublishEvent]) -> int:
    begins: dict[str, int] = {}
    ends: dict[str, int] = {}
    for event in events:
        if event.act != "asked":
            begins.setdefault(event.process, event.t)
            ends[event.process] = event.t
    return sum(end - begins[process] for process, end in ends.items())


def _snapshot(checkpoint: set[IdentityKey], created: int | None, job: JobHistory, *, before: int) -> int | None:
    """Up to when the checkpoint holds the training: as the ranks' journals tell, else as its own manifest does."""
    ranks = [rank for attempt in job.attempts for rank in attempt.ranks]
    saves = [save.snapshot for rank in ranks for save in rank.saves if not checkpoint.isdisjoint(save.identity) and save.snapshot <= before]
    return max(saves) if saves else created


def _last_step(job: JobHistory, *, before: int) -> int | None:
    ends: list[int] = []
    for rank in (rank for attempt in job.attempts for rank in attempt.ranks):
        ends += [progress.t for progress in rank.progress if progress.step and progress.t <= before]
        if rank.last_step_t is not None and rank.last_step_t <= before:
            ends.append(rank.last_step_t)
    return max(ends, default=None)

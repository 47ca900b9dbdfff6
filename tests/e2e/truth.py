"""What really happened to a job, by brute force, from the program's own diary and from what the test itself did and saw.

Never from a file of ettrain's. The definitions are those of the ledger: the job trains while every rank is inside a step of its
attempt and none was stopped yet; its wall time runs from the start of the first `ett run` to the end of the last process below
one; what was trained after the snapshot of the checkpoint that a later attempt resumed from is unsaved.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path

S = 1e9
FOREVER = 1 << 62


@dataclass
class Seen:
    """What the test did and saw; monotonic ns."""

    begun: list[int] = field(default_factory=list)
    """When each `ett run` (or torchrun) was started."""
    ends: dict[int, int] = field(default_factory=dict)
    """Process id -> when it ended; processes below the supervisor."""
    kills: dict[int, int] = field(default_factory=dict)
    """Process id -> when the test sent it SIGKILL."""
    stops: list[int] = field(default_factory=list)
    """When the test told the job to stop."""


@dataclass
class Rank:
    """One process's diary."""

    number: int
    pid: int
    start: int
    entries: list[dict]

    def all(self, *what):
        return [entry for entry in self.entries if entry["what"] in what]

    def first(self, what):
        return next((entry["t"] for entry in self.entries if entry["what"] == what), None)


@dataclass
class Attempt:
    """The processes of one start."""

    ranks: list[Rank]
    world: int
    end: int
    stop: int
    """When productive work stopped; `end` where nothing broke."""
    resumed: int
    """Step it went on from."""
    trained: list[tuple[int, int]] = field(default_factory=list)
    """When it trained: every rank inside a step."""

    @property
    def start(self):
        return min(rank.start for rank in self.ranks)

    @property
    def first_step(self):
        """When every rank had finished a step; None if that never was."""
        firsts = [rank.first("step_end") for rank in self.ranks]
        return max(firsts) if len(firsts) == self.world and None not in firsts else None


@dataclass
class Incident:
    """One interruption; seconds."""

    ttr_s: float
    unsaved_s: float
    resumed: int | None


@dataclass
class Truth:
    """The figures; seconds and percent."""

    wall_s: float
    effective_s: float
    ett_pct: float
    tts_s: float
    unsaved_s: float
    incidents: list[Incident]
    attempts: int
    steps: int
    ids: list[int]
    """Samples whose training survives, in order of their steps."""


def read(folder: Path) -> dict[str, list[Rank]]:
    """Launch -> its ranks' diaries, in order of their starts."""
    launches: dict[str, list[Rank]] = {}
    for path in folder.glob("*.jsonl"):
        lines = path.read_bytes().split(b"\n")[:-1]
        entries = [json.loads(line) for line in lines]
        if entries:
            first = entries[0]
            launches.setdefault(first["launch"], []).append(Rank(first["rank"], first["pid"], first["t"], entries))
    return dict(sorted(launches.items(), key=lambda item: min(rank.start for rank in item[1])))


def truth_of(folder: Path, seen: Seen) -> Truth:
    """The figures of the job whose diaries lie in `folder`."""
    attempts = [attempt_of(ranks, seen) for ranks in read(folder).values()]
    start = seen.begun[0]
    end = max(max(seen.ends.values()), attempts[-1].end)
    trained = [piece for attempt in attempts for piece in attempt.trained]
    lost: list[tuple[int, int]] = []
    unsaved_by: dict[int, float] = {}
    last = None
    for number, attempt in enumerate(attempts):
        if not attempt.trained:
            continue
        if last is not None:
            since = snapshot(attempts[:number], attempt.resumed)
            before = total(cut(trained, lost))
            lost.append((since, attempt.start))
            unsaved_by[last] = before - total(cut(trained, lost))
        last = number
    if attempts[-1].stop < attempts[-1].end and last is not None:
        saves = [entry["t"] for attempt in attempts for rank in attempt.ranks for entry in durable(rank)]
        lost.append((max(saves, default=0), end))
    effective = total(cut(trained, lost))
    incidents = []
    for number, attempt in enumerate(attempts):
        following = attempts[number + 1] if number + 1 < len(attempts) else None
        if following is None and attempt.stop == attempt.end:
            continue
        until = attempt.end if following is None else following.first_step or following.stop
        ttr = until - attempt.stop - total(within(trained, attempt.stop, until))
        resumed = following.resumed if following is not None and following.trained else None
        incidents.append(Incident(ttr / S, unsaved_by.get(number, 0) / S, resumed))
    begun = attempts[0].first_step or attempts[0].stop
    surviving = survivors(attempts)
    return Truth(
        wall_s=(end - start) / S,
        effective_s=effective / S,
        ett_pct=100 * effective / (end - start),
        tts_s=(begun - start - total(within(trained, start, begun))) / S,
        unsaved_s=(total(trained) - effective) / S,
        incidents=incidents,
        attempts=len(attempts),
        steps=max(surviving, default=-1) + 1,
        ids=[number for step in sorted(surviving) for number in sorted(surviving[step])],
    )


def attempt_of(ranks: list[Rank], seen: Seen) -> Attempt:
    """One start of the job's processes."""
    world = ranks[0].entries[0]["world"]
    ends = [seen.ends.get(rank.pid, FOREVER) for rank in ranks]
    end = max(end for end in ends if end < FOREVER)
    stops = [end]
    for rank in ranks:
        stops += [seen.kills[rank.pid]] if rank.pid in seen.kills else []
        faults, healed = rank.all("fault"), rank.all("healed")
        stops += [fault["t"] for fault in faults[len(healed) :]]
        if rank.all("preempted"):
            stops.append(rank.first("preempted"))
        elif not rank.all("end") and rank.pid not in seen.kills:
            stops += [stop for stop in seen.stops if rank.start < stop < end]
    loads = [entry["step"] for rank in ranks for entry in rank.all("load_end")]
    attempt = Attempt(ranks=ranks, world=world, end=end, stop=min(stops), resumed=max(loads, default=0))
    attempt.trained = training(attempt)
    return attempt


def training(attempt: Attempt) -> list[tuple[int, int]]:
    """When every rank was inside a step, at work: looked at between any two instants that anybody wrote down."""
    if len(attempt.ranks) < attempt.world:
        return []
    busy = [inside(rank, attempt.stop) for rank in attempt.ranks]
    instants = sorted({t for pieces in busy for piece in pieces for t in piece})
    result = []
    for low, high in zip(instants, instants[1:], strict=False):
        if all(covers(pieces, low) for pieces in busy):
            result.append((low, high))
    return result


def inside(rank: Rank, stop: int) -> list[tuple[int, int]]:
    """A rank's iterations: from a batch's delivery to the wait for the next, less saves, evaluations, and what a fault slept."""
    pieces: list[tuple[int, int]] = []
    begin = None
    for entry in rank.entries:
        what, t = entry["what"], entry["t"]
        if what in ("step_begin", "save_end", "eval_end", "healed") and begin is None:
            begin = t
        elif what in ("wait_begin", "save_begin", "eval_begin", "preempted", "fault", "end") and begin is not None:
            pieces.append((begin, t))
            begin = None
    if begin is not None:
        pieces.append((begin, stop))
    steps = rank.all("step_end", "step_begin")
    if rank.all("end") and steps:
        stop = min(stop, steps[-1]["t"])
    return [(low, min(high, stop)) for low, high in pieces if low < stop]


def covers(pieces: list[tuple[int, int]], t: int) -> bool:
    index = bisect_right(pieces, (t, FOREVER)) - 1
    return index >= 0 and pieces[index][0] <= t < pieces[index][1]


def durable(rank: Rank) -> list[dict]:
    """Its saves (begin) that were finished."""
    finished = {entry["step"] for entry in rank.all("save_end")}
    return [entry for entry in rank.all("save_begin") if entry["step"] in finished]


def snapshot(attempts: list[Attempt], step: int) -> int:
    """When the newest checkpoint of that step was taken; 0 for the very beginning."""
    return max((e["t"] for attempt in attempts for rank in attempt.ranks for e in durable(rank) if e["step"] == step), default=0)


def survivors(attempts: list[Attempt]) -> dict[int, list[int]]:
    """Global step -> samples of all ranks, for the steps whose result is in the final state."""
    steps: dict[int, list[int]] = {}
    for attempt in attempts:
        done = [rank.all("step_end") for rank in attempt.ranks]
        if not any(done):
            continue
        steps = {step: ids for step, ids in steps.items() if step < attempt.resumed}
        for entry in (entry for entries in done for entry in entries):
            steps.setdefault(entry["step"], []).extend(entry["ids"])
    return steps


def within(pieces, low, high):
    return [(max(a, low), min(b, high)) for a, b in pieces if a < high and b > low]


def cut(pieces, holes):
    """`pieces` less the holes."""
    for low, high in holes:
        pieces = [part for a, b in pieces for part in ((a, min(b, low)), (max(a, high), b)) if part[0] < part[1]]
    return pieces


def total(pieces):
    return sum(b - a for a, b in pieces)

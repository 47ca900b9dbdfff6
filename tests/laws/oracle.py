"""A second, slow opinion: what a story's time was, second by second, written from the words of docs/accounting.md.

It reads the story, not the files, and shares with the package only the tables of `lifecycle`. Times are whole seconds; the state
of a second is that of its middle. No interval arithmetic, no merging, no sums of differences: only look-ups and counting.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ettrain.lifecycle import PRIORITY, leaf_of, leaf_path, order_of
from ettrain.testing.stories import Deed, Plan, Story

INFINITE = 10**9


@dataclass
class Stage:
    name: str
    user: bool
    start: int
    end: int
    steps_inside: int = 0


@dataclass
class Checkpoint:
    snapshot: int
    durable: int  # INFINITE = never
    attempt: int
    local: int
    step: int = 0


@dataclass
class Load:
    end: int
    local: int
    checkpoint: Checkpoint | None
    more_steps: bool = False


@dataclass
class RankLife:
    begin: int
    entered: int
    end: int = 0
    exit: int | None = None
    threw: bool = False
    alive: bool = False
    stages: list[Stage] = field(default_factory=list)
    step_ends: list[int] = field(default_factory=list)
    step_begins: list[int] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)

    @property
    def well(self) -> bool:
        return self.exit is not None and not self.threw

    @property
    def died(self) -> bool:
        return not self.alive and not self.well


@dataclass
class Segment:
    """A stretch of one attempt's training that goes on from a checkpoint (parent, instant), or from nothing."""

    attempt: int
    start: int
    end: int
    parent: Segment | None
    upto: int  # of the parent


@dataclass
class AttemptLife:
    plan: Plan
    start: int
    end: int = 0
    stopped: int = 0
    broke: bool = False
    ranks: list[RankLife] = field(default_factory=list)


class Oracle:
    """What happened, and what each second was."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.attempts: list[AttemptLife] = []
        self.checkpoints: list[Checkpoint] = []
        self._live(story)
        self._lineage()

    # ---- what happened

    def _live(self, story: Story) -> None:
        now = 0
        for number, plan in enumerate(story.plans):
            if not plan.restart:
                now += plan.gap
            attempt = AttemptLife(plan=plan, start=now)
            self.attempts.append(attempt)
            self._picks: dict[tuple[int, ...], Checkpoint | None] = {}
            for rank in range(plan.ranks):
                self._rank(number, attempt, plan, rank)
            lives = attempt.ranks
            latest = max(life.end for life in lives)
            if plan.ending == "hang":
                latest += plan.at
            if plan.ending in ("finish", "preempt", "run"):
                latest += plan.after
            attempt.end = now = latest
            for life in lives:
                if plan.ending in ("hang", "run"):
                    life.end = latest
                life.alive = plan.ending == "run"
            for checkpoint in self.checkpoints:
                if checkpoint.attempt == number and checkpoint.durable > lives[0].end:
                    checkpoint.durable = INFINITE
            self._stop(attempt, last=number + 1 == len(story.plans))

    def _rank(self, number: int, attempt: AttemptLife, plan: Plan, rank: int) -> None:
        begin = attempt.start + plan.delays[rank]
        life = RankLife(begin=begin, entered=begin + plan.interpreter[rank])
        attempt.ranks.append(life)
        deadline = INFINITE
        if plan.ending in ("die", "throw"):
            deadline = attempt.start + plan.at + (0 if rank == plan.victim else plan.after)
        t = life.entered
        for place, deed in enumerate(plan.deeds):
            if t is not None:
                t = self._do(number, life, rank, deed, (place,), t, deadline)
        if deadline < INFINITE:
            life.end = deadline
            if plan.ending == "throw" and rank == plan.victim:
                life.exit, life.threw = deadline, True
            return
        life.end = t
        if plan.ending in ("finish", "preempt"):
            life.exit = t
            life.end = t + plan.teardown[rank]

    def _do(self, number: int, life: RankLife, rank: int, deed: Deed, place: tuple[int, ...], t: int, deadline: int) -> int | None:
        """Lives through a deed; returns when it was over, None if the rank was gone by then. An open stage lasts to the rank's end."""
        seconds = deed.seconds[rank]
        if deed.kind == "pause":
            return self._passed(t + seconds, deadline)
        if deed.kind == "step":
            life.step_begins.append(t)
            if deed.compiling:
                done = min(t + deed.compiling, deadline)
                life.stages.append(Stage("compile", False, t, done))
                if self._passed(t + deed.compiling, deadline) is None:
                    return None
            over = self._passed(t + deed.compiling + seconds, deadline)
            if over is not None:
                life.step_ends.append(over)
            return over
        if deed.kind == "stage":
            stage = Stage(deed.name, deed.user, t, INFINITE)
            life.stages.append(stage)
            steps = len(life.step_ends)
            over: int | None = t
            for index, inner in enumerate(deed.inside):
                over = self._do(number, life, rank, inner, (*place, index), over, deadline) if over is not None else None
            over = self._passed(over + seconds, deadline) if over is not None else None
            stage.end = deadline if over is None else over
            stage.steps_inside = len(life.step_ends) - steps
            return over
        name = "checkpoint_save" if deed.kind == "save" else "checkpoint_load"
        life.stages.append(Stage(name, False, t, min(t + seconds, deadline)))
        picked = self._pick(t, deed, place) if deed.kind == "load" else None
        over = self._passed(t + seconds, deadline)
        if over is None:
            return None
        if deed.kind == "save" and rank == 0:
            durable = over + (deed.commit_after or 0)
            self.checkpoints.append(Checkpoint(t, durable, number, len(life.step_ends)))
        if deed.kind == "load":
            life.loads.append(Load(over, len(life.step_ends), picked))
        return over

    def _passed(self, then: int, deadline: int) -> int | None:
        return None if then >= deadline else then

    def _pick(self, t: int, deed: Deed, place: tuple[int, ...]) -> Checkpoint | None:
        if place not in self._picks:
            there = [checkpoint for checkpoint in self.checkpoints if checkpoint.durable <= t]
            self._picks[place] = there[deed.pick % len(there)] if there and deed.pick >= 0 else None
        return self._picks[place]

    def _stop(self, attempt: AttemptLife, *, last: bool) -> None:
        """When productive work stopped, if it broke: the first rank that ended badly, or since when all were silent too long."""
        plan, lives = attempt.plan, attempt.ranks
        attempt.stopped = attempt.end
        if plan.ending in ("finish", "run"):
            attempt.broke = plan.ending == "finish" and not last
            return
        attempt.broke = True
        if plan.ending == "preempt":
            attempt.stopped = min(life.exit for life in lives)
        elif plan.ending == "hang":
            if max(len(life.step_ends) for life in lives) >= 2:
                progress = [t for life in lives if life.step_ends for t in (life.step_ends[-1], *(s.end for s in life.stages if not s.steps_inside or not s.user))]
                attempt.stopped = max(progress)
        else:
            attempt.stopped = lives[plan.victim].end

    # ---- what survived

    def _lineage(self) -> None:
        self.segments: list[list[Segment]] = []
        self.bases: list[int] = []
        current: Segment | None = None
        newest: tuple[Segment, int] | None = None
        for number, attempt in enumerate(self.attempts):
            mine: list[Segment] = []
            self.segments.append(mine)
            self.bases.append(0)
            loaded = [
                load.checkpoint
                for life in attempt.ranks
                for load in life.loads
                if load.local == 0 and load.checkpoint is not None and load.checkpoint.attempt < number and load.checkpoint.durable <= load.end
            ]
            first = Segment(number, attempt.start, attempt.end, None, 0)
            mine.append(first)
            if loaded:
                best = max(loaded, key=lambda checkpoint: (checkpoint.step, -checkpoint.snapshot))
                first.parent, first.upto = self._segment_at(best), best.snapshot
                self.bases[number] = best.step
            if not any(life.step_ends for life in attempt.ranks):
                # It never trained: the job's state is what it was, but its own checkpoints hold what it had loaded.
                for checkpoint in self._saves(number):
                    checkpoint.step = self.bases[number]
                continue
            newest = (first.parent, first.upto) if loaded else (first, attempt.start)
            newest = self._inside(number, attempt, mine, newest)
            current = mine[-1]
        final: tuple[Segment | None, int] = (current, INFINITE)
        end = self.attempts[-1]
        trained = any(life.step_ends for life in end.ranks)
        if (end.broke or (end.plan.ending == "run" and not trained)) and newest is not None:
            final = newest
        self.kept: list[tuple[int, int]] = []
        segment, upto = final
        while segment is not None:
            self.kept.append((segment.start, min(upto, segment.end)))
            segment, upto = segment.parent, segment.upto
        if end.plan.ending == "run" and not trained:
            self.kept.append((end.start, end.end))
        self.newest = newest

    def _inside(self, number: int, attempt: AttemptLife, mine: list[Segment], newest: tuple[Segment, int]) -> tuple[Segment, int]:
        """Saves and loads while training, in order of time."""
        points = {0: self.bases[number]}  # count of steps -> global step, where it was set
        saves = self._saves(number)
        loads = [load for life in attempt.ranks for load in life.loads if 0 < load.local < len(life.step_ends)]
        happened = sorted([(s.snapshot, 0, s) for s in saves] + [(load.end, 1, load) for load in loads], key=lambda event: event[:2])
        for t, _, event in happened:
            since = max(local for local in points if local <= event.local)
            here = points[since] + event.local - since
            if isinstance(event, Checkpoint):
                event.step = here
                continue
            checkpoint = event.checkpoint
            if checkpoint is None or checkpoint.durable > event.end or checkpoint.step == here:
                continue
            mine[-1].end = t
            mine.append(Segment(number, t, attempt.end, self._segment_at(checkpoint), checkpoint.snapshot))
            points[event.local] = checkpoint.step
        good = [s for s in saves if s.durable <= attempt.end]
        if good:
            last = max(good, key=lambda checkpoint: checkpoint.snapshot)
            if last.snapshot >= newest[1]:
                newest = (self._segment_at(last), last.snapshot)
        return newest

    def _saves(self, number: int) -> list[Checkpoint]:
        return [checkpoint for checkpoint in self.checkpoints if checkpoint.attempt == number]

    def _segment_at(self, checkpoint: Checkpoint) -> Segment | None:
        """The segment whose training the checkpoint holds."""
        for segment in reversed(self.segments[checkpoint.attempt]):
            if segment.start <= checkpoint.snapshot:
                return segment
        return None

    # ---- each second

    def rank_state(self, number: int, rank: int | None, second: int) -> str:
        """Leaf of a rank (None: one that left no journal) in the middle of a second, training not yet split."""
        attempt = self.attempts[number]
        middle = second + 0.5
        up = min(life.begin for life in attempt.ranks)
        if middle > attempt.stopped:
            return "failure/detect"
        if middle < up:
            return "start/launch" if number == 0 else "failure/reschedule"
        if rank is None:
            return "start/launch"
        life = attempt.ranks[rank]
        if middle < life.entered:
            return "start/launch"
        well = life.well or attempt.plan.ending == "finish"
        if middle > life.end:
            return "shutdown/teardown" if well else "failure/detect"
        last = life.step_ends[-1] if life.step_ends else None
        covering = [s for s in life.stages if s.start < middle < s.end and not (s.user and s.steps_inside)]
        if covering:
            # Of equals the innermost: the one begun last, which is the later one in this list.
            strongest = max(reversed(covering), key=lambda s: (s.user, 0 if s.user else -PRIORITY.index(s.name), s.start))
            if not life.step_ends or middle < life.step_ends[0]:
                phase = "start"
            else:
                phase = "shutdown" if well and middle > last else "steady"
            return leaf_of(strongest.name, phase)
        if well and life.exit is not None and middle > life.exit:
            return "shutdown/teardown"
        if well and last is not None and middle > last:
            return "untracked"
        return "effective" if life.step_begins and middle > life.step_begins[0] else "start/setup"

    def members(self, number: int) -> list[int | None]:
        """Ranks of an attempt; those that left no journal count only while none has finished a step."""
        attempt = self.attempts[number]
        members: list[int | None] = list(range(attempt.plan.ranks))
        if not any(life.step_ends for life in attempt.ranks):
            members += [None] * (attempt.plan.world - attempt.plan.ranks)
        return members

    def _holding(self, number: int) -> list[int | None]:
        attempt = self.attempts[number]
        members = self.members(number)
        if not any(life.step_ends for life in attempt.ranks):
            return members
        return [m for m in members if m is None or attempt.ranks[m].died or attempt.ranks[m].step_begins]

    def paths(self) -> list[str]:
        """Path of the job's state in each second since its begin."""
        life: list[str] = []
        for number, attempt in enumerate(self.attempts):
            life += ["failure/reschedule"] * (attempt.start - self.attempts[0].start - len(life))
            for second in range(attempt.start, attempt.end):
                states = [self.rank_state(number, member, second) for member in self._holding(number)]
                life.append(self._path(number, self._furthest(states), second))
        return life

    def _furthest(self, states: list[str]) -> str:
        for alike in ("failure/detect", "failure/reschedule"):
            if alike in states:
                return alike
        return min(states, key=lambda leaf: (order_of(leaf), leaf))

    def _path(self, number: int, leaf: str, second: int) -> str:
        if leaf == "effective" and not any(start <= second < end for start, end in self.kept):
            return "failure/unsaved"
        return leaf_path(leaf, restart=number > 0)

    def device_seconds(self) -> Counter[str]:
        """Device-seconds per path."""
        devices = self.story.devices
        total: Counter[str] = Counter()
        for number, attempt in enumerate(self.attempts):
            members = self.members(number)
            for second in range(attempt.start, attempt.end):
                for member in members:
                    total[self._path(number, self.rank_state(number, member, second), second)] += devices
            if number + 1 < len(self.attempts):
                total["failure/reschedule"] += (self.attempts[number + 1].start - attempt.end) * devices * len(members)
        return total

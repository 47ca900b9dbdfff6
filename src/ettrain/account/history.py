"""What happened to a job, as typed data: the input of the accounting. All times are integer ns on the job's clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ettrain.tuned import Tuned

IdentityKey = tuple[str | int, ...]
NO_LIMIT: Final = 1 << 62


class Label(NamedTuple):
    """What a span is called."""

    stage: str
    """Name of the stage."""
    user: bool
    """Whether the program marked it itself."""
    part: str
    """Finer label, e.g. the function compiled; '' = none."""


class Span(NamedTuple):
    """One closed interval of one rank's main thread."""

    start: int
    end: int
    label: Label


class Progress(NamedTuple):
    """Cumulative progress of a rank at an instant."""

    t: int
    step: int
    """Steps counted by this process."""
    wait_ns: int
    """Sum of data waits too short for a span of their own."""


class Slow(NamedTuple):
    """A step that took far longer than usual."""

    start: int
    end: int
    typical_ns: int


class Compile(NamedTuple):
    """One compilation, forward or lazy backward, as far as torch told of it."""

    start: int
    end: int
    function: str
    where: str
    """`file:line` of the function."""
    reason: str
    """Why it was compiled again, in torch's words; '' = the first time."""
    hits: int
    """Of its graphs, those that torch's caches held."""
    misses: int
    """Those that had to be compiled; both 0 = not told."""
    id: str = ""
    """torch's number of it; a lazy backward has its forward's."""
    refused: bool = False
    """Nothing was compiled: the function has been compiled too often, and runs uncompiled from then on where no graph fits."""


Seen = tuple[int | None, ...] | int | float | str
"""What dynamo has seen of a source: a tensor's sizes, None where they varied; a number; or how the whole varied: `rank` (a
tensor's number of dimensions), `int`, `float`, `?`."""


class Dims(NamedTuple):
    """What a compilation told about one source of one function."""

    t: int
    """Begin of that compilation."""
    function: str
    where: str
    """`file:line` of the function."""
    source: str
    """dynamo's name of it, e.g. `L['ids'][0]`."""
    seen: Seen
    """What has been seen of it so far."""
    was: Seen | None
    """What had been seen of it before; None = the source is new."""


class CommGroup(NamedTuple):
    """A process group that a rank is a member of."""

    t: int
    """When it was first used, or made."""
    name: str
    """torch's name of it; the same on all its members."""
    size: int
    ranks: str
    """E.g. '0-7,16'; ends in '…' where it is cut."""
    same: str
    """Equal for groups of the same ranks."""
    backend: str
    desc: str


class Comm(NamedTuple):
    """Collectives of one kind that a rank issued before its first step, from one place."""

    start: int
    end: int
    op: str
    """Name of torch's function."""
    group: str
    """Name of the group; '' for one that the rank is no member of."""
    size: int
    n: int
    wire: int
    """Operations on the wire; an object collective has several."""
    bytes: int
    ns: int
    """Time for which the host was in the calls, waiting for others included."""
    longest_ns: int
    asyncs: int
    """Calls that returned before the traffic was done: only the time of issuing them is in `ns`."""
    late: bool
    """After the first forward pass: traffic of the first iteration, not of the set-up."""
    via: str
    """Function of torch through which they came, '' where the operation was called itself."""
    site: str
    """`file:line` of the innermost code outside torch."""
    user: str
    """`file:line` of the program itself; '' = it is `site`, or not known."""
    api: str
    """Function of an installed package that the program called, '' where it called torch."""


class CacheUse(NamedTuple):
    """A fetch from the shared compile cache, or a publication to it."""

    start: int
    end: int
    act: str
    """`fetch` or `publish`."""
    entries: int
    size: int
    """Bytes."""
    reason: str
    """What was not used or did not work, and why; '' = all went well."""


class StartStage(NamedTuple):
    """One stage of an `ett.Startup`."""

    name: str
    lane: str
    """Where it ran: `thread`, `main`, `collective` or `process`."""
    start: int
    end: int
    """Both 0 where it did not begin; `end` alone 0 where it did not end."""
    cpu_ns: int
    """CPU time of its thread; what other threads and processes did for it is not in it."""
    needs: tuple[int, ...]
    """Stages whose results it took, by their place in the run."""
    after: tuple[int, ...]
    """Further stages that it had to wait for: those before it in an order that is kept."""


class StartRun(NamedTuple):
    """One run of an `ett.Startup`."""

    start: int
    end: int
    sequential: bool
    """Whether it ran without overlap."""
    error: str
    """Type of the exception that ended it, '' = none."""
    failed: str
    """Stage that raised it."""
    stages: tuple[StartStage, ...]
    """As declared."""


class Tuning(NamedTuple):
    """A search among kernels, or what a file of winners did instead."""

    start: int
    end: int
    tuned: Tuned
    state: str
    """`searched`, `cached` (the timings were known from an earlier search), `pinned` or `ignored` (a pin that did not fit)."""
    reason: str
    """Why a pin did not fit."""


class PublishEvent(NamedTuple):
    """What a process that asked for a model, or made it, told at an instant."""

    t: int
    id: str
    act: str
    """`asked`, `began`, `stage` or `ended`."""
    process: str
    """Which journal it stands in."""
    name: str
    place: str
    """The request's folder."""
    checkpoint: tuple[IdentityKey, ...]
    """By what it is known, strongest first; empty = not told here."""
    stage: str
    outcome: str
    version: str
    why: str
    step: int | None
    created: int | None
    """When the checkpoint was taken, by its own manifest."""
    tries: int
    cpu_ns: int
    """Of its process so far, the asker's with its training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """One checkpoint written by one rank."""

    snapshot: int
    """Instant up to which it holds the work."""
    durable: int | None
    """Instant at which it could be loaded; None = never."""
    local_step: int
    """Steps counted by the process when it was taken."""
    identity: tuple[IdentityKey, ...]
    """Strongest first; two checkpoints are the same if they share a key."""
    blocking_ns: int
    """Time for which it kept the main thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One checkpoint read by one rank."""

    t: int
    local_step: int
    identity: tuple[IdentityKey, ...]
    path: str


class SaveInterval(NamedTuple):
    """How often a checkpoint is saved from an instant on."""

    t: int
    every: str
    """What was asked for: `auto`, `time`, `steps` or `never`."""
    interval_ns: int | None
    """None where it is not a matter of time."""
    steps: int | None
    """Each multiple of so many steps; None where it is a matter of time."""
    why: str


class PlannedStop(NamedTuple):
    """The training was told to end, and had time to save."""

    t: int
    by: str
    """Name of a signal, or `time limit`."""


class Said(NamedTuple):
    """The program's own step number."""

    t: int
    local_step: int
    step: int


class RaisedError(NamedTuple):
    """An exception that left the program."""

    t: int
    type: str
    message: str
    trace: str


@dataclass(slots=True, kw_only=True)
class RankHistory:
    """One process of one rank in one attempt."""

    rank: int
    world: int
    devices: int
    pid: int
    host: str
    start: int
    """Creation of the process."""
    entered: int
    """Entrance of the recorder: the end of the interpreter's own start."""
    end: int
    """End of the process, or the last instant known of it while it is alive."""
    alive: bool = False
    exit_t: int | None = None
    """Begin of an end in good order (the interpreter's exit handlers)."""
    code: int | None = None
    """Exit code, negative for a signal; None = not known."""
    error: RaisedError | None = None
    spans: list[Span] = field(default_factory=list)
    background: list[Span] = field(default_factory=list)
    """Spans beside the main thread: shown, never billed."""
    compiles: list[Compile] = field(default_factory=list)
    start_runs: list[StartRun] = field(default_factory=list)
    dims: list[Dims] = field(default_factory=list)
    tunings: list[Tuning] = field(default_factory=list)
    dynamic_sources: str | None = ""
    """What was dynamic from the start by TORCH_COMPILE_DYNAMIC_SOURCES; None = something, but it is not known what."""
    cache_uses: list[CacheUse] = field(default_factory=list)
    groups: list[CommGroup] = field(default_factory=list)
    comms: list[Comm] = field(default_factory=list)
    """Collectives until the first step; written at the first step or at the end, so a killed start has none."""
    marks: dict[str, int] = field(default_factory=dict)
    progress: list[Progress] = field(default_factory=list)
    """In order of time."""
    slows: list[Slow] = field(default_factory=list)
    steps: int = 0
    first_step_t: int | None = None
    last_step_t: int | None = None
    limit_ns: int = NO_LIMIT
    """Silence longer than this is no step any more."""
    active_t: int = 0
    """Last sign of life."""
    open_stage: str | None = None
    """Stage that was open at `end`."""
    saves: list[Save] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)
    said: list[Said] = field(default_factory=list)
    save_interval: SaveInterval | None = None
    """The last that was told."""
    planned_stop: PlannedStop | None = None
    step_source: str = ""
    faults: int = 0
    fault_texts: list[str] = field(default_factory=list)

    @property
    def died(self) -> bool:
        """Whether the process ended otherwise than in good order."""
        if self.alive:
            return False
        if self.code is not None:
            return self.code != 0
        return self.error is not None or self.exit_t is None


@dataclass(slots=True, kw_only=True)
class AttemptHistory:
    """One launch of the job's processes."""

    name: str
    start: int
    end: int | None
    """Release of the processes; None while running."""
    ranks: list[RankHistory] = field(default_factory=list)
    code: int | None = None
    """The launcher's exit code, negative for a signal."""
    sent: tuple[str, ...] = ()
    """Signals that the supervisor itself got and passed on."""
    ended_by: str = ""
    """Why the supervisor ended it ('hang'), '' if it did not."""
    oom_kills: int = 0
    """Processes the kernel killed for memory while it ran."""
    lost: bool = False
    """The supervisor vanished before the attempt ended: `end` is the last sign of life."""
    failed_t: int | None = None
    """When the launcher's agent saw a rank end badly, with or without a journal of its own."""
    continues: bool = False
    """It goes on where the one before came to its good end: a script that trains twice, not a restart."""
    text: str = ""
    """What is known in words, e.g. why the command could not be started."""
    told_class: str = ""
    """Class of its end in the source's own word (of `lifecycle.CLASSES`), where it has one: imported jobs."""

    @property
    def world(self) -> int:
        """Ranks expected."""
        return max([rank.world for rank in self.ranks] + [len(self.ranks)], default=0)


@dataclass(slots=True, kw_only=True)
class JobHistory:
    """One logical training run."""

    name: str
    attempts: list[AttemptHistory]
    now: int
    """The instant at which the reader looks."""
    running: bool = False
    submitted: int | None = None
    command: tuple[str, ...] = ()
    devices_per_rank: int = 1
    publish_events: list[PublishEvent] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    torn_lines: int = 0
    journals: int = 0
    clock_correction_ns: int = 0
    supports: tuple[str, ...] | None = None
    """Figures that a foreign source can carry; None = all."""

"""Jobs built by hand for the pages: a few stories with known numbers, and the builders they are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ettrain.account.history import (
    AttemptHistory,
    JobHistory,
    Label,
    Load,
    Progress,
    RaisedError,
    RankHistory,
    Said,
    Save,
    Span,
)
from ettrain.account.ledger import Account, account

S = 1_000_000_000
T0 = 1_764_432_000 * S
"""2025-11-29 16:00:00 UTC."""
NASTY = "<script>alert('x')</script>&\"\x1b[31mred\x1b[0m\nnew line\u202egnp.exe \ud800"
Story = tuple[Account, JobHistory]

START = (
    ("imports", "torch", 5.2),
    ("imports", "other", 0.9),
    ("device_init", "", 0.8),
    ("process_group_init", "", 2.1),
    ("preproc_creation", "", 1.4),
    ("train_module_creation", "", 3.3),
)
COMPILE = (("forward", 12.0), ("loss_fn", 3.5), ("backward", 4.0))


def at(seconds: float) -> int:
    """Job clock of an instant, seconds after the job's start."""
    return T0 + round(seconds * S)


def span(start: float, end: float, stage: str, *, part: str = "", user: bool = False) -> Span:
    """A closed span, seconds."""
    return Span(at(start), at(end), Label(stage, user, part))


def trained_rank(
    rank: int,
    *,
    begin: float,
    end: float,
    shift: float = 0.0,
    load_step: int | None = None,
    save_every: float = 0.0,
    good: bool = False,
    world: int = 2,
    code: int | None = None,
    step_s: float = 0.5,
) -> RankHistory:
    """A rank that starts at `begin`, compiles inside its first step, trains a step each `step_s`, and ends at `end`."""
    now = begin + 0.3 + shift
    spans: list[Span] = []
    for stage, part, length in START:
        spans.append(span(now, now + length, stage, part=part))
        now += length + 0.05
    loads: list[Load] = []
    if load_step is not None:
        spans.append(span(now, now + 1.5, "checkpoint_load"))
        loads.append(Load(t=at(now + 1.5), local_step=0, identity=(("sid", f"ckpt-{load_step}"),), path=f"ckpt-{load_step}.pt"))
        now += 1.5
    spans.append(span(now, now + 0.6, "get_first_batch_data"))
    now += 0.6
    forward = now
    for part, length in COMPILE:
        spans.append(span(now, now + length, "compile", part=part))
        now += length
    first_step = now + 0.4
    last_step = end - 2.5 if good else end - 0.2
    steps = 1 + int((last_step - first_step) / step_s)
    saves: list[Save] = []
    base = load_step or 0
    background: list[Span] = []
    saved = first_step + save_every
    while save_every and saved + 6 < last_step:
        local = 1 + int((saved - first_step) / step_s)
        spans.append(span(saved, saved + 1.2, "checkpoint_save"))
        background.append(span(saved + 1.2, saved + 5.0, "checkpoint_save", part="write"))
        identity = (("sid", f"ckpt-{base + local}"),)
        saves.append(Save(snapshot=at(saved), durable=at(saved + 5.0), local_step=local, identity=identity, blocking_ns=round(1.2 * S)))
        saved += save_every
    progress = [Progress(at(first_step), 1, 0), Progress(at(last_step), steps, round(0.01 * S) * steps)]
    if good and save_every:
        spans.append(span(last_step + 0.2, last_step + 1.4, "checkpoint_save"))
    return RankHistory(
        rank=rank,
        world=world,
        devices=1,
        pid=100 + rank,
        host="host-a",
        start=at(begin),
        entered=at(begin + 0.1),
        end=at(end),
        exit_t=at(end - 0.6) if good else None,
        code=0 if good else code,
        spans=sorted(spans),
        background=background,
        marks={"first_forward": at(forward), "first_backward": at(first_step - 0.2)},
        progress=progress,
        steps=steps,
        first_step_t=at(first_step),
        last_step_t=at(last_step),
        limit_ns=30 * S,
        active_t=at(last_step),
        saves=saves,
        loads=loads,
        step_source="optimizer",
    )


def attempt(name: str, start: float, end: float | None, ranks: Iterable[RankHistory], **more: object) -> AttemptHistory:
    """One attempt, seconds."""
    made = AttemptHistory(name=name, start=at(start), end=None if end is None else at(end), ranks=list(ranks))
    for key, value in more.items():
        setattr(made, key, value)
    return made


def job(attempts: list[AttemptHistory], *, now: float = 10_000.0, name: str = "dlrm-nightly", **more: object) -> JobHistory:
    """A job, with what its recorder would say."""
    made = JobHistory(
        name=name, attempts=attempts, now=at(now), command=("torchrun", "--nproc-per-node=2", "train.py"), journals=2 * len(attempts)
    )
    for key, value in more.items():
        setattr(made, key, value)
    return made


def clean_job() -> JobHistory:
    """One attempt that ends well; saves every 60 s; was in the queue for 40 s."""
    ranks = [trained_rank(r, begin=1.0, end=400.0, shift=0.4 * r, save_every=60, good=True) for r in range(2)]
    return job([attempt("000", 0.0, 400.4, ranks, code=0)], submitted=at(-40.0))


def two_failures() -> JobHistory:
    """Rank 1 is killed, then the network fails; both attempts are resumed from checkpoints."""
    first = [trained_rank(0, begin=1.0, end=303.0, save_every=60), trained_rank(1, begin=1.0, end=300.0, shift=0.4, save_every=60, code=-9)]
    first[0].last_step_t = first[0].progress[-1].t
    step = first[0].saves[-1].local_step
    second = [trained_rank(r, begin=308.0, end=650.0, shift=0.2 * r, save_every=60, load_step=step) for r in range(2)]
    second[1].error = RaisedError(at(649.9), "RuntimeError", "NCCL error: remote process exited or there was a network error", "")
    again = step + second[0].saves[-1].local_step
    third = [trained_rank(r, begin=661.0, end=1000.0, save_every=60, load_step=again, good=True) for r in range(2)]
    attempts = [
        attempt("000", 0.0, 303.5, first, code=1),
        attempt("001", 306.0, 655.0, second, code=1),
        attempt("002", 660.0, 1000.5, third, code=0),
    ]
    return job(attempts, torn_lines=1, clock_correction_ns=23_000_000, notes=["torchrun 2.8.0 on 1 node"])


def running_job() -> JobHistory:
    """Still training; rank 1 is evaluating."""
    ranks = [trained_rank(r, begin=1.0, end=200.0, save_every=60) for r in range(2)]
    for rank in ranks:
        rank.alive, rank.code = True, None
    ranks[1].spans.append(span(197.0, 200.0, "evaluation"))
    ranks[1].open_stage = "evaluation"
    return job([attempt("000", 0.0, None, ranks)], now=200.0, running=True)


def no_steps() -> JobHistory:
    """An import fails before any step."""
    rank = RankHistory(rank=0, world=1, devices=1, pid=7, host="h", start=at(0.5), entered=at(0.6), end=at(4.0), code=1)
    rank.spans = [span(0.7, 3.5, "imports", part="torch")]
    rank.error = RaisedError(at(3.9), "ModuleNotFoundError", "No module named 'torchrec'", "")
    rank.faults, rank.fault_texts = 2, ["hooks.optimizer: AttributeError('step')"]
    return job([attempt("000", 0.0, 4.1, [rank], code=1)], name="no-steps")


def unsupported() -> JobHistory:
    """A foreign log that knows queueing and failures, and nothing of steps."""
    attempts = [attempt("000", 0.0, 3600.0, [], code=-9), attempt("001", 3700.0, 7200.0, [], code=0)]
    supports = ("failures", "queue", "devices", "incidents")
    return job(attempts, name="slurm-4711", submitted=at(-600.0), supports=supports, notes=["imported from sacct"])


def nasty_strings() -> JobHistory:
    """Every foreign text tries to break out of the page and of the terminal."""
    ranks = [trained_rank(r, begin=1.0, end=100.0) for r in range(2)]
    ranks[0].error = RaisedError(at(99.9), "RuntimeError", NASTY, NASTY)
    ranks[0].spans.append(span(60.0, 70.0, NASTY, part=NASTY, user=True))
    ranks[0].background.append(span(60.0, 70.0, NASTY, part=NASTY, user=True))
    ranks[0].faults, ranks[0].fault_texts, ranks[0].step_source = 1, [NASTY], NASTY
    return job([attempt("000", 0.0, 101.0, ranks, code=1)], name=NASTY, notes=[NASTY], command=("python", NASTY))


def fresh_restart() -> JobHistory:
    """It never saves, is preempted, starts from nothing; the second attempt says its own step, the third left a rank unmeasured."""
    first = [trained_rank(r, begin=1.0, end=90.0) for r in range(2)]
    second = [trained_rank(r, begin=101.0, end=190.0) for r in range(2)]
    third = [trained_rank(0, begin=201.0, end=290.0, good=True)]
    third[0].said = [Said(third[0].first_step_t or 0, 1, 31)]
    attempts = [
        attempt("000", 0.0, 91.0, first, code=143, sent=("SIGTERM",)),
        attempt("001", 100.0, 191.0, second, code=143, sent=("SIGTERM",)),
        attempt("002", 200.0, 291.0, third, code=0),
    ]
    return job(attempts, name="never-saves")


def waiting() -> JobHistory:
    """The only attempt was killed and the supervisor waits for new hardware."""
    ranks = [trained_rank(r, begin=1.0, end=200.0, save_every=60, code=-9) for r in range(2)]
    return job([attempt("000", 0.0, 201.0, ranks, code=137)], name="waiting", now=260.0, running=True)


def nothing() -> JobHistory:
    """A folder without an attempt."""
    return job([], name="empty", now=0.0, running=True)


def many_attempts(count: int = 1000) -> JobHistory:
    """A crash loop."""
    attempts = []
    for number in range(count):
        start = number * 80.0
        ranks = [trained_rank(r, begin=start + 1, end=start + 70, world=1, code=-9) for r in range(1)]
        attempts.append(attempt(f"{number:03d}", start, start + 71.0, ranks, code=137))
    return job(attempts, name="crash-loop")


STORIES: dict[str, Callable[[], JobHistory]] = {
    "clean": clean_job,
    "two_failures": two_failures,
    "running": running_job,
    "no_steps": no_steps,
    "unsupported": unsupported,
    "nasty": nasty_strings,
    "fresh": fresh_restart,
    "waiting": waiting,
    "nothing": nothing,
    "many": many_attempts,
}
_TOLD: dict[str, Story] = {}


def tell(name: str) -> Story:
    """A story's account and history, made once."""
    if name not in _TOLD:
        history = STORIES[name]()
        _TOLD[name] = account(history), history
    return _TOLD[name]

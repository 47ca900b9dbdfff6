"""Home of the strategies of the laws: journals nobody would write, folders that grow, clocks that are set while a job runs."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from hypothesis import strategies as st

from ettrain import events as e
from ettrain.account.assemble import RankBuilder
from ettrain.account.history import AttemptHistory, JobHistory
from ettrain.beat import memory_beat
from ettrain.testing import Story

SECOND = 1_000_000_000
SHM = "/dev/shm" if Path("/dev/shm").is_dir() else None

instants = st.integers(0, 60)
names = st.sampled_from((*e.FOUND_NAMES[1:], "alpha", "beta", "", "a/b", "effective"))
identities = st.fixed_dictionaries(
    {},
    optional={
        "path": st.sampled_from(("a.pt", "b.pt")),
        "sid": st.sampled_from(("x", "y", 7)),
        "ino": st.sampled_from(([1, 1], [1, 2], [1], "no")),
        "mtime": st.integers(0, 2),
    },
)


def _record(kind: str, **fields: st.SearchStrategy) -> st.SearchStrategy[dict]:
    return st.fixed_dictionaries({"k": st.just(kind), "t": instants, **fields})


def _maybe(fields: dict[str, st.SearchStrategy]) -> st.SearchStrategy[dict]:
    return st.fixed_dictionaries({}, optional=fields)


def _with(base: st.SearchStrategy[dict], **optional: st.SearchStrategy) -> st.SearchStrategy[dict]:
    return st.tuples(base, _maybe(optional)).map(lambda pair: {**pair[0], **pair[1]})


counts = st.integers(0, 9)
good_records = st.one_of(
    _with(_record("span", name=names, end=instants), by=st.sampled_from(("user", "found")), lane=st.sampled_from((0, 5)), steps=counts,
          part=st.sampled_from(("", "p")), step=counts, save=counts, id=identities, pending=st.booleans(), err=st.just("OSError")),
    _with(_record("prog", step=counts), wait=st.integers(0, 30), limit=st.integers(0, 20)),
    _record("slow", end=instants, typical=st.integers(0, 10)),
    _record("mark", name=st.sampled_from(("first_forward", "first_backward", "first_step", "step_source"))),
    _record("said", step=counts, local=counts),
    _with(_record("commit", save=counts, ok=st.booleans()), id=identities),
    _record("exc", type=st.sampled_from(("RuntimeError", "KeyboardInterrupt")), message=st.just("CUDA out of memory")),
    _record("exit"),
    _record("recount"),
    _record("rank", rank=st.integers(0, 3), world=st.integers(0, 4)),
    _record("name", code=st.integers(1000, 1002), name=names),
    _record("fault", where=st.just("x"), error=st.just("y"), count=counts),
    _record("clock", wall=instants),
)  # fmt: skip
junk = st.one_of(st.none(), st.just("text"), st.just(-5), st.just(1.5), st.just([]), st.just({}), st.just(10**30), st.booleans())


@st.composite
def records(draw: st.DrawFn) -> dict:
    """A journal record; now and then a field of it is missing or nonsense."""
    record = draw(good_records)
    if draw(st.integers(0, 9)) == 0:
        key = draw(st.sampled_from([key for key in record if key != "k"]))
        record = {**record, key: draw(junk)} if draw(st.booleans()) else {k: v for k, v in record.items() if k != key}
    return record


@st.composite
def beats(draw: st.DrawFn, pid: int) -> e.Beat | None:
    """A beat page, or none."""
    if draw(st.booleans()):
        return None
    slots = memory_beat()
    slots[e.B_PID] = pid
    for slot in (e.B_STEP_T, e.B_ACTIVE_T, e.B_EVAL_T, e.B_FIRST_STEP_T):
        slots[slot] = draw(instants)
    for slot in (e.B_STEP, e.B_WAIT, e.B_FAULTS, e.B_SAID, e.B_LIMIT):
        slots[slot] = draw(counts)
    depth = slots[e.B_DEPTH] = draw(st.integers(0, 3))
    for index in range(depth):
        slots[e.B_STACK + 2 * index] = draw(st.sampled_from((1, 2, 7, 13, 1000, 1001, 999)))
        slots[e.B_STACK + 2 * index + 1] = draw(instants)
    return e.beat_from(slots)


@st.composite
def histories(draw: st.DrawFn) -> JobHistory:
    """A job whose ranks' journals hold anything."""
    attempts: list[AttemptHistory] = []
    now = 0
    pid = 100
    number = draw(st.integers(0, 4))
    running = draw(st.booleans())
    for index in range(number):
        last = index + 1 == number
        start = now + draw(st.integers(0, 20))
        end = start + draw(st.integers(0, 40))
        now = end
        attempt = AttemptHistory(name=f"{index:03d}", start=start, end=None if last and draw(st.booleans()) else end)
        attempt.code = draw(st.sampled_from((None, 0, 0, 1, -9, 143)))
        attempt.sent = draw(st.sampled_from(((), (), ("SIGTERM",))))
        attempt.ended_by = draw(st.sampled_from(("", "", "hang")))
        attempt.lost = draw(st.booleans())
        for rank in range(draw(st.integers(0, 3))):
            pid += 1
            head = {"k": "head", "t": draw(instants), "wall": 0, "pid": pid, "rank": rank, "world": draw(st.integers(0, 4)), "devices": draw(st.integers(0, 2))}
            head.update(draw(_maybe({"start": instants, "entered": instants})))
            builder = RankBuilder(head, start)
            builder.feed(draw(st.lists(records(), max_size=12)))
            alive = attempt.end is None and draw(st.booleans())
            built = builder.build(draw(beats(pid)), end=None if alive else start + draw(instants), now=now + 5)
            built.code = draw(st.sampled_from((None, None, 0, 1, -9)))
            attempt.ranks.append(built)
        attempts.append(attempt)
    return JobHistory(name="wild", attempts=attempts, now=now + draw(st.integers(0, 10)), running=running, submitted=draw(st.sampled_from((None, 0))))


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder that is gone afterwards, in memory where that is possible."""
    folder = Path(tempfile.mkdtemp(dir=SHM))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def in_step(story: Story) -> Story:
    """The same story with all ranks in step, as synchronised training has it: each takes the first one's time for everything."""

    def together(deed):
        return replace(deed, seconds=(deed.seconds[0],) * len(deed.seconds), inside=tuple(map(together, deed.inside)))

    plans = []
    for plan in story.plans:
        ranks = plan.ranks
        whole = plan.delays[0] + plan.interpreter[0] + sum(together(deed).total(0) for deed in plan.deeds)
        born = plan.delays[0] + plan.interpreter[0] + 1
        plans.append(
            replace(
                plan,
                delays=plan.delays[:1] * ranks,
                interpreter=plan.interpreter[:1] * ranks,
                deeds=tuple(map(together, plan.deeds)),
                teardown=plan.teardown[:1] * ranks,
                at=plan.at if plan.ending == "hang" else max(born, min(plan.at, whole + 3)),
            )
        )
    return replace(story, plans=tuple(plans))


class Growth:
    """Copies a job's folder file by file, a few bytes at a time, in an order that seed decides."""

    def __init__(self, source: Path, target: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.source, self.target = source, target
        self.target.mkdir()
        self.rest = {path: path.read_bytes() for path in sorted(source.rglob("*.jsonl"))}
        self.beats = sorted(source.rglob("*.beat"))
        self.done: dict[Path, int] = dict.fromkeys(self.rest, 0)

    def grow(self) -> bool:
        """Add a piece to some files; False when all is there."""
        open_files = [path for path, whole in self.rest.items() if self.done[path] < len(whole)]
        if not open_files:
            return False
        for path in self.random.sample(open_files, self.random.randint(1, len(open_files))):
            size = self.random.choice((1, 17, 300, 5000))
            piece = self.rest[path][self.done[path] : self.done[path] + size]
            self.done[path] += len(piece)
            self._append(path, piece)
        if self.beats and self.random.random() < 0.3:
            self._beat(self.random.choice(self.beats))
        return True

    def finish(self) -> None:
        """Bring all beat pages."""
        for beat in self.beats:
            self._beat(beat)

    def _append(self, path: Path, piece: bytes) -> None:
        target = self.target / path.relative_to(self.source)
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("ab") as file:
            file.write(piece)

    def _beat(self, path: Path) -> None:
        target = self.target / path.relative_to(self.source)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)

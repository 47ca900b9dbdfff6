"""Writes the jobs of `bench/ledger.py` with the real recorder, on a clock under control.

`steps FOLDER STEPS`: one rank, 10 s a step, each with its wait for data, a checkpoint every 15 minutes.
`ranks FOLDER RANKS HOURS`: 8 ranks a host, 1 s a step, start stages, waits, a checkpoint every 15 minutes, one failure and a resume.
16 ranks go through the recorder; the others are those, with their own head, host clock and a small shift in time.
Both jobs are still running when this ends; it prints the instant at which it left them.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fakeclock import EPOCH_NS, FakeClock

CLOCK: Final = FakeClock()

from ettrain import events as e  # noqa: E402 - the recorder binds the clock when it is imported
from ettrain.beat import open_beat, read_beat  # noqa: E402
from ettrain.jobpaths import JobPaths, attempt_name, rank_stem  # noqa: E402
from ettrain.journal import JournalTail, JournalWriter  # noqa: E402
from ettrain.record.recorder import Recorder  # noqa: E402
from ettrain.settings import ENV_ATTEMPT, ENV_JOB_DIR  # noqa: E402

SAVE_EVERY_S: Final = 900
LATE_SHARE: Final = 0.002
"""Steps for which some rank's data is 3 s late."""
PATTERNS: Final = 16
RANKS_PER_HOST: Final = 8
FAILS_AT: Final = 0.6
"""Share of the job after which it fails."""


class Rank:
    """Drives one rank's recorder the way the hooks do."""

    def __init__(self, job: Path, rank: int, world: int) -> None:
        os.environ[ENV_JOB_DIR] = str(job)
        self.recorder = Recorder()
        self.rank = rank
        CLOCK.pass_s(0.05)
        self.recorder.imported("torch", CLOCK.pass_s(6), CLOCK.t)
        self.recorder.promote(rank, world)

    def stage(self, name: str, seconds: float, **more: Any) -> None:
        """A stage of that duration."""
        begin = self.recorder.open_stage(name)
        CLOCK.pass_s(seconds)
        self.recorder.close_stage(name, begin, **more)

    def start(self, *, resumed_from: int | None) -> None:
        """Everything before the first step."""
        self.stage("process_group_init", 3, part="nccl")
        self.stage("train_module_creation", 8)
        if resumed_from is not None:
            self.stage("checkpoint_load", 20, step=0, part="dcp.load", id=identity(resumed_from))
        self.recorder.span("get_first_batch_data", CLOCK.pass_s(5), CLOCK.t)
        self.recorder.mark("first_forward", CLOCK.t, part="Model")
        self.stage("compile", 40, part="forward")
        self.recorder.mark("first_backward", CLOCK.t)

    def train(self, until_t: int, step_s: float, *, resumed_from: int = 0, steps: int = 1 << 62) -> None:
        """Steps until then, or so many; a wait before each, a checkpoint every 15 minutes.

        All ranks finish a step together: when one waits long for its data, the others wait for it within their step.
        """
        recorder, own, common = self.recorder, random.Random(self.rank), random.Random(resumed_from)
        save_t = CLOCK.t + SAVE_EVERY_S * 1_000_000_000
        while CLOCK.t < until_t and recorder.steps < steps:
            late_s = 3.0 if common.random() < LATE_SHARE else 0.0
            wait_s = late_s if late_s and common.randrange(PATTERNS) == self.rank else step_s * (0.005 + 0.02 * own.random())
            recorder.waited(CLOCK.pass_s(wait_s), CLOCK.t)
            recorder.rule.batches += 1
            recorder.rule.activity += 1
            CLOCK.pass_s(step_s + late_s - wait_s)
            recorder.backward_done()
            recorder.optimizer_done(1)
            if save_t < CLOCK.t:
                save_t += SAVE_EVERY_S * 1_000_000_000
                number = recorder.next_save()
                self.stage("checkpoint_save", 8, step=recorder.steps, save=number, part="dcp.save", id=identity(resumed_from + number))


def identity(number: int) -> dict[str, Any]:
    """What the hooks write about a checkpoint's folder."""
    return {"path": f"/checkpoints/{number:06d}", "ino": [66, 1000 + number], "fp": f"{number:024x}"}


def supervisor(job: JobPaths) -> JournalWriter:
    """The supervisor's journal, opened on the first host."""
    job.attempts.mkdir(parents=True)
    journal = JournalWriter(job.supervisor_journal)
    head = {
        "k": "head",
        "schema": e.SCHEMA,
        "t": CLOCK.t,
        "wall": CLOCK.t + CLOCK.wall_less_t,
        "boot": CLOCK.boot,
        "host": "host-0",
        "pid": 1,
    }
    journal.write({**head, "role": "supervisor", "start": CLOCK.t})
    journal.write({"k": "job", "t": CLOCK.t, "command": ["torchrun", "train.py"], "devices_per_rank": 1})
    return journal


def begin(journal: JournalWriter, number: int) -> None:
    """An attempt begins."""
    os.environ[ENV_ATTEMPT] = str(number)
    journal.write({"k": "begin", "t": CLOCK.t, "attempt": attempt_name(number), "launch": number})


def one_rank(folder: Path, steps: int) -> None:
    """One rank that has trained for so many steps."""
    job = JobPaths(folder)
    begin(supervisor(job), 0)
    rank = Rank(folder, 0, 1)
    rank.start(resumed_from=None)
    rank.train(1 << 62, step_s=10, steps=steps)
    sign_of_life(job)


def sign_of_life(job: JobPaths) -> None:
    """The supervisor's: it is there."""
    open_beat(job.supervisor_beat, 1)[e.B_ACTIVE_T] = CLOCK.t


def ranks(folder: Path, world: int, hours: float) -> None:
    """A running job of many ranks."""
    job = JobPaths(folder)
    journal = supervisor(job)
    start, length = CLOCK.t, int(hours * 3600e9)
    failure = start + int(FAILS_AT * length)
    begin(journal, 0)
    saves = patterns(folder, world, failure, resumed_from=None)
    spread_out(job.attempt("000"), world)
    for rank in range(world):
        killed = rank == world // 3
        CLOCK.t = failure + (0 if killed else 4_000_000_000)
        if rank < RANKS_PER_HOST or killed:
            journal.write({"k": "gone", "t": CLOCK.t, "pid": pid_of(rank), "attempt": "000", "code": -9 if killed else -15})
    CLOCK.t = failure + 10_000_000_000
    journal.write({"k": "end", "t": CLOCK.t, "attempt": "000", "code": 1, "sent": []})
    CLOCK.pass_s(120)
    begin(journal, 1)
    patterns(folder, world, start + length, resumed_from=saves)
    spread_out(job.attempt("001"), world)
    CLOCK.t = start + length
    sign_of_life(job)


def patterns(folder: Path, world: int, until_t: int, *, resumed_from: int | None) -> int:
    """Record the ranks that the others are copied from; returns the number of their last checkpoint."""
    begun = CLOCK.t
    saves = 0
    for rank in range(min(PATTERNS, world)):
        CLOCK.t = begun
        driven = Rank(folder, rank, world)
        driven.start(resumed_from=resumed_from)
        driven.train(until_t, step_s=1, resumed_from=resumed_from or 0)
        saves = max(saves, (resumed_from or 0) + driven.recorder.next_save() - 1)
    return saves


def pid_of(rank: int) -> int:
    """Made up, one per rank."""
    return 100_000 + rank


def spread_out(folder: Path, world: int) -> None:
    """Make journals and beat pages of all ranks from the recorded ones."""
    recorded = [Recording.of(folder / f"{rank_stem(rank, 0)}.jsonl") for rank in range(min(PATTERNS, world))]
    chance = random.Random(world)
    for rank in range(world):
        one, host = recorded[rank % len(recorded)], rank // RANKS_PER_HOST
        ahead = host * 1_000_000_000_000 + rank * 1000
        wall_ahead = rank * 1000 + _wall_error_ns(host)
        late = chance.randrange(2_000_000)
        own = {name: one.head[name] + ahead for name in ("t", "start", "entered")} | {"wall": one.head["wall"] + wall_ahead}
        own |= {"rank": rank, "world": world, "pid": pid_of(rank), "boot": f"boot-{host}", "host": f"host-{host}"}
        path = folder / f"{rank_stem(rank, 0)}.jsonl"
        path.write_bytes(e.encode(one.head | own) + one.shifted(ahead + late, wall_ahead + late))
        path.with_suffix(".beat").unlink(missing_ok=True)
        page = open_beat(path.with_suffix(".beat"), pid_of(rank))
        page[e.B_STEP], page[e.B_STEP_T], page[e.B_ACTIVE_T] = (
            one.beat.step,
            one.beat.step_t + ahead + late,
            one.beat.active_t + ahead + late,
        )
        page[e.B_WAIT], page[e.B_LIMIT], page[e.B_FIRST_STEP_T] = one.beat.wait_ns, one.beat.limit_ns, one.beat.first_step_t + ahead + late


def _wall_error_ns(host: int) -> int:
    """A cluster's clocks agree to 2 ms, but every 32nd host is 40 ms off."""
    return 40_000_000 if host % 32 == 5 else random.Random(host).randrange(-2_000_000, 2_000_000)


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded journal, ready to be written again with other instants."""

    head: e.Record
    text: str
    """The other lines, with %d for each instant."""
    instants: list[tuple[bool, int]]
    """Whether it is a wall clock's, and its ns."""
    beat: e.Beat

    @classmethod
    def of(cls, path: Path) -> Recording:
        """Read it."""
        head, *records = JournalTail(path).read_new()
        instants: list[tuple[bool, int]] = []

        def blank(match: re.Match[str]) -> str:
            instants.append((match[2] == "wall", int(match[3])))
            return f"{match[1]}%d"

        lines = "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records).replace("%", "%%")
        text = re.sub(r'("(t|end|wall)":)(\d+)', blank, lines)
        beat = read_beat(path.with_suffix(".beat"))
        if beat is None:
            raise AssertionError(path)
        return cls(head, text, instants, beat)

    def shifted(self, ns: int, wall_ns: int) -> bytes:
        """The lines, moved in time."""
        return (self.text % tuple(t + (wall_ns if wall else ns) for wall, t in self.instants)).encode()


if __name__ == "__main__":
    kind, where, amount = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    if kind == "steps":
        one_rank(where, amount)
    else:
        ranks(where, amount, float(sys.argv[4]))
    print(json.dumps({"now_wall_ns": CLOCK.t + EPOCH_NS}))

"""A fake rank writes what the recorder writes: the same story told to both gives the same records and the same beat page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ettrain import events as e
from ettrain.beat import read_beat
from ettrain.record import recorder as recorder_module
from ettrain.record import stages
from ettrain.record.recorder import Recorder
from ettrain.testing import FakeClock, FakeJob

S = 1_000_000_000
FIELDS = ("k", "t", "end", "name", "by", "steps", "step", "wait", "limit", "typical", "local", "save", "lane")


class Real:
    """The recorder, told the same things as a `FakeRank`."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.recorder = Recorder()
        self.recorder.promote(0, 1)
        self.open: list[tuple[str, int, bool, int]] = []

    def pause(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def enter(self, name: str, *, user: bool = False) -> None:
        self.open.append((name, self.recorder.open_stage(name, user=user), user, self.recorder.steps))

    def leave(self, **more: object) -> None:
        name, begin, user, steps = self.open.pop()
        self.recorder.close_stage(name, begin, user=user, steps=self.recorder.steps - steps, **more)

    def stage(self, name: str, seconds: float, *, user: bool = False) -> None:
        self.enter(name, user=user)
        self.pause(seconds)
        self.leave()

    def step(self, seconds: float) -> None:
        self.pause(seconds)
        self.recorder.program_step(None)

    def steps(self, count: int, seconds: float) -> None:
        for _ in range(count):
            self.step(seconds)

    def save(self, seconds: float) -> None:
        self.recorder.about_to_save()
        number = self.recorder.next_save()
        step = self.recorder.steps
        self.enter("checkpoint_save")
        self.pause(seconds)
        self.leave(save=number, step=step)

    def said(self, step: int) -> None:
        self.recorder.said(step)

    def exit(self) -> None:
        self.recorder.finish()


def story(rank) -> None:
    rank.stage("imports", 3)
    rank.enter("alpha", user=True)
    rank.stage("device_init", 2)
    rank.pause(1)
    rank.leave()
    rank.said(0)
    rank.steps(5, 0.25)
    rank.save(2)
    rank.steps(40, 0.25)
    rank.stage("evaluation", 30)
    rank.enter("epoch", user=True)
    rank.steps(3, 0.5)
    rank.stage("evaluation", 9)
    rank.step(0.5)
    rank.leave()
    rank.step(60)
    rank.steps(20, 0.25)
    rank.steps(100, 0.001)
    rank.step(5)
    rank.exit()


def told(path: Path) -> list[dict]:
    records = [json.loads(line) for line in path.read_text().splitlines()]
    kept = [record for record in records if record["k"] in ("span", "prog", "slow", "said", "exit", "name", "mark")]
    kept = [record for record in kept if record.get("name") not in ("first_forward", "first_backward", "step_source")]
    return [{key: record[key] for key in FIELDS if key in record} for record in kept]


@pytest.fixture
def real(tmp_path, monkeypatch):
    clock = FakeClock()
    for module in (recorder_module, stages):
        monkeypatch.setattr(module, "now", lambda: clock.monotonic_ns)
    monkeypatch.setenv("ETT_JOB_DIR", str(tmp_path / "real"))
    for name in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "TORCHELASTIC_RESTART_COUNT", "ETT_ATTEMPT"):
        monkeypatch.delenv(name, raising=False)
    return Real(clock)


def test_the_same_story_gives_the_same_records(real, tmp_path):
    job = FakeJob(tmp_path, "fake")
    fake = job.attempt().ranks[0]
    story(real)
    story(fake)
    job.close()
    ours, theirs = told(job.paths.attempt("000") / "rank-00000.jsonl"), told(tmp_path / "real/attempts/000/rank-00000.jsonl")
    for mine, its in zip(ours, theirs, strict=True):
        assert mine == its
    left, right = read_beat(job.paths.attempt("000") / "rank-00000.beat"), read_beat(tmp_path / "real/attempts/000/rank-00000.beat")
    assert left is not None
    assert right is not None
    for name in ("step", "step_t", "limit_ns", "typical_ns", "first_step_t", "wait_ns", "said", "stack"):
        assert getattr(left, name) == getattr(right, name), name


def test_the_clock_moves_only_when_told():
    clock = FakeClock(wall_s=5, monotonic_s=1)
    clock.advance(0.5)
    clock.step_wall(-3)
    assert clock.pair() == (2_500_000_000, 1_500_000_000)
    assert e.SCHEMA == 1

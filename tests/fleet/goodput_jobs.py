"""Jobs as a goodput-style recorder sees them, with their truth: the kinds of docs/accounting.md's peers, with any parameters."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ORIGIN_S = 1_767_225_600


@dataclass
class Recording:
    """A job that is written down as it goes. Seconds since its begin."""

    name: str = "job"
    step_s: float = 10
    init_s: float = 30
    prep_s: float = 60
    restore_s: float = 20
    batch_s: float = 5
    compile_s: float = 40
    save_s: float = 2
    every: int = 20
    t: float = 0
    records: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    tiles: list[tuple[float, float, str]] = field(default_factory=list)
    trained: dict[int, int] = field(default_factory=dict)
    """Step -> index of its tile, while it counts."""
    failures: int = 0

    # ---- what is recorded

    def say(self, key: str, t: float | None = None, **more: Any) -> None:
        """One record of one instant."""
        at = self.t if t is None else t
        self.records.append((at, {key: ORIGIN_S + at, **more}))

    def pass_time(self, seconds: float, category: str) -> None:
        """Time passes in a category of the truth."""
        if seconds:
            self.tiles.append((self.t, self.t + seconds, category))
        self.t += seconds

    # ---- what happens

    def start(self, restore: int | None = None, *, dies_after: str = "", dies_s: float = 0) -> None:
        """A process comes up; `dies_after` names the stage in which it dies, `dies_s` into it."""
        self.say("job_start_time")
        for stage, seconds, category in (("tpu_init", self.init_s, "device_init"), ("training_prep", self.prep_s, "training_prep")):
            self.say(f"{stage}_start_time")
            if dies_after == stage:
                self.pass_time(dies_s, category)
                self.failures += 1
                return
            if stage == "training_prep" and restore is not None:
                self.restore(restore)
            self.pass_time(seconds, category)
            self.say(f"{stage}_end_time")
        self.first = True

    def restore(self, step: int, seconds: float | None = None) -> None:
        """Orbax loads a checkpoint: what came after it is lost."""
        seconds = self.restore_s if seconds is None else seconds
        at = ORIGIN_S + self.t
        self.pass_time(seconds, "ckpt_restore")
        record = {"event_type": "restore", "step": step, "checkpoint_manager_start_time": at, "checkpoint_manager_duration_secs": seconds}
        self.records.append((self.t, record))
        self.lose(step + 1)

    def lose(self, step: int) -> None:
        """Steps from that one on do not survive."""
        for number in [number for number in self.trained if number >= step]:
            index = self.trained.pop(number)
            self.tiles[index] = (*self.tiles[index][:2], "rolled_back")

    def load(self, seconds: float, category: str) -> None:
        """The program waits for a batch."""
        self.say("data_loading_start_time")
        self.pass_time(seconds, category)
        self.say("data_loading_end_time")

    def begin_step(self, number: int, *, recorded: bool = True) -> None:
        """A step begins, after its batch was there."""
        self.load(self.batch_s if self.first else 0, "first_batch")
        if recorded:
            self.say("step_start_time", step_count=number)
        if self.first:
            self.pass_time(self.compile_s, "compile")
        self.first = False

    def step(self, number: int, *, recorded: bool = True, seconds: float | None = None, save: bool | None = None) -> None:
        """A whole step, and the save after it where one is due."""
        self.begin_step(number, recorded=recorded)
        self.pass_time(self.step_s if seconds is None else seconds, "productive")
        self.trained[number] = len(self.tiles) - 1
        due = (number + 1) % self.every == 0 if save is None else save
        if due:
            self.save(number)

    def save(self, step: int, seconds: float | None = None, *, recorded: bool = True, **more: Any) -> None:
        """Orbax saves."""
        seconds = self.save_s if seconds is None else seconds
        at = ORIGIN_S + self.t
        self.pass_time(seconds, "ckpt_block")
        if recorded:
            blocking = {"checkpoint_manager_blocking_start_time": at, "checkpoint_manager_blocking_duration_secs": seconds}
            self.records.append((self.t, {"event_type": "save", "step": step, **blocking, **more}))

    def custom(self, kind: str, seconds: float, category: str) -> None:
        """A custom badput event."""
        self.say("custom_badput_event_start_time", custom_badput_event_type=kind)
        self.pass_time(seconds, category)
        self.say("custom_badput_event_end_time", custom_badput_event_type=kind)

    def crash(self, number: int, partial_s: float, wait_s: float, *, says_end: bool = False, hang_s: float = 0) -> None:
        """It dies so far into a step, perhaps after hanging, and the next process comes so much later."""
        self.begin_step(number)
        self.pass_time(partial_s, "rolled_back")
        self.pass_time(hang_s, "hang")
        self.failures += 1
        if says_end:
            self.say("job_end_time")
        self.pass_time(wait_s, "scheduling")

    def end(self) -> None:
        """The job ends in good order."""
        self.say("job_end_time")

    # ---- what is left

    def write(self, folder: Path, *, upto: float | None = None) -> Path:
        """The records as a file; those after `upto` are not there yet."""
        path = folder / f"{self.name}.records.jsonl"
        lines = [json.dumps({"job_name": self.name, **record}) for t, record in self.records if upto is None or t <= upto]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    def truth(self, until: float | None = None) -> Counter[str]:
        """Category -> ns, up to an instant."""
        total: Counter[str] = Counter()
        for start, end, category in self.tiles:
            if until is not None:
                start, end = min(start, until), min(end, until)
            total[category] += round((end - start) * 1_000_000_000)
        return +total


def clean(job: Recording, steps: int = 100, first: int = 0) -> Recording:
    """Steps `first` to `steps`, and the end."""
    for number in range(first, steps):
        job.step(number)
    job.end()
    return job

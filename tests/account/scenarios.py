"""The scenarios with the right answers, told as fake jobs: every tile of the truth becomes what a recorder would have seen."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from ettrain.account.ledger import Ledger
from ettrain.testing import FakeAttempt, FakeCheckpoint, FakeJob

FOLDER = Path(__file__).resolve().parents[3] / "shared/data/scenarios"
SECOND = 1_000_000_000
STAGE = {
    "device_init": "device_init",
    "training_prep": "pre_train",
    "first_batch": "get_first_batch_data",
    "compile": "compile",
    "eval": "evaluation",
    "data_stall": "data_wait",
    "publish": "publish",
    "ckpt_restore": "checkpoint_load",
    "elastic_reinit": "process_group_init",
    "reinit": "process_group_init",
}
CATEGORY = {
    "effective": "productive",
    "unsaved": "rolled_back",
    "checkpoint_blocking": "ckpt_block",
    "final_checkpoint": "ckpt_block",
    "checkpoint_load": "ckpt_restore",
    "reschedule": "scheduling",
    "detect": "hang",
    "stall": "hang",
    "pre_train": "training_prep",
    "get_first_batch_data": "first_batch",
    "data_wait": "data_stall",
    "evaluation": "eval",
    "recompile": "compile",
}
"""Last word of a leaf's path -> the truth's category; others keep their name."""


def names() -> list[str]:
    """Scenarios that are here."""
    return sorted(path.stem for path in FOLDER.glob("*.json")) if FOLDER.is_dir() else []


def scenario(name: str) -> dict:
    """One scenario as read."""
    if not FOLDER.is_dir():
        pytest.skip(f"no scenarios at {FOLDER}")
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def truth_of(data: dict) -> Counter[str]:
    """Category -> ns."""
    total: Counter[str] = Counter()
    for start, end, category in data["truth"]:
        total[category] += round(end * SECOND) - round(start * SECOND)
    return total


def found_in(ledger: Ledger) -> Counter[str]:
    """The ledger's leaves under the truth's names, ns."""
    total = Counter({"productive": ledger.effective_ns})
    for leaf in ledger.leaves:
        word = leaf.path.rsplit("/", 1)[-1]
        total[CATEGORY.get(word, word)] += leaf.wall_ns
    return +total


class Told:
    """Tells a scenario's truth as a fake job: tiles are what happened, the events say where steps and saves are."""

    def __init__(self, folder: Path, data: dict) -> None:
        self.job = FakeJob(folder, data["name"])
        self.tiles = [(start, end, category) for start, end, category in data["truth"]]
        steps = [(t, fields["step"]) for kind, t, fields in data["events"] if kind == "step_start"]
        self.steps = [now for now, before in zip(steps, [(-1.0, -1), *steps], strict=False) if now[1] != before[1] or now[0] - before[0] > 1]
        """Of two writers, the first."""
        self.saves = {t: fields["step"] for kind, t, fields in data["events"] if kind == "orbax_save"}
        self.saved: dict[int, FakeCheckpoint] = {}
        self.attempt: FakeAttempt | None = None
        self.now = 0.0
        self.next_step: int | None = None
        """Global step that is under way; None before training."""

    def tell(self) -> FakeJob:
        """Write the job's files."""
        starts = [t for t, _ in self.steps]
        for index, (start, end, category) in enumerate(self.tiles):
            if category == "scheduling":
                self._end_attempt()
                self.job.wait(end - start)
            else:
                if self.attempt is None:
                    self.attempt = self.job.attempt()
                self._tile(start, end, category, starts, index)
            self.now = end
        self.attempt.exit()
        self.attempt.end()
        self.job.bye()
        self.job.close()
        return self.job

    @property
    def rank(self):
        return self.attempt.ranks[0]

    def _tile(self, start: float, end: float, category: str, starts: list[float], index: int) -> None:
        if category in ("productive", "rolled_back", "compile"):
            self._train(start, end, category)
        elif category == "ckpt_block":
            step = next((step for t, step in self.saves.items() if start < t <= end), None)
            self.saved[len(self.saved) if step is None else step] = self.rank.save(end - start, f"/{step}.pt")
        elif category == "ckpt_restore":
            after = min((t, step) for t, step in self.steps if t >= end)[1]
            self.rank.load(self.saved[after - 1], end - start)
        elif category == "hang":
            self.rank.pause(end - start)
        else:
            self.rank.stage(STAGE.get(category, category), end - start)

    def _train(self, start: float, end: float, category: str) -> None:
        """Training in [start, end): steps end where the next one, or what is not training, begins."""
        begins = [t for t, _ in self.steps if start <= t < end]
        if start in begins and not self.rank.counted:
            self.rank.begin_step()
        if category == "compile":
            self.rank.stage("compile", end - start)
            return
        position = start
        for t in [t for t in begins if t > start] + [end]:
            self.rank.pause(t - position)
            position = t
            if t < end or self._step_ends(t):
                self.rank.count()

    def _step_ends(self, t: float) -> bool:
        """Whether the end of a stretch of training is the end of a step: not where it hangs or breaks in the middle."""
        tile = next((tile for tile in self.tiles if tile[0] == t), None)
        if tile is None:
            return True
        if tile[2] == "scheduling":
            begun = max(s for s, _ in self.steps if s < t)
            return t - begun >= 10
        return True

    def _end_attempt(self) -> None:
        hung = [tile for tile in self.tiles if tile[1] == self.now and tile[2] == "hang"]
        self.rank.vanish(-9)
        self.attempt.end(-9, reason="hang" if hung else "")
        self.attempt = None

"""Real torchrun, real workers, SIGKILL of everything at random instants: no sample is missing and none is trained twice in what survives."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parent / "programs" / "once.py"
EPOCHS = 3
SIZE = 401


def lives(folder, worlds, workers, kind, *, seed, kills):
    """Runs until a life ends by itself; the first ones are killed, each at a random step and instant."""
    chance = random.Random(seed)
    for life in range(20):
        world, count = worlds[min(life, len(worlds) - 1)], workers[min(life, len(workers) - 1)]
        mark = f"once-{folder.name}-{life}-{os.getpid()}"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
        command += [str(PROGRAM), str(folder), str(life), "--workers", str(count), "--kind", kind, "--size", str(SIZE)]
        with (folder / f"out-{life}").open("wb") as out:
            environment = os.environ | {"OMP_NUM_THREADS": "1", "ETT_TEST_LIFE": mark}
            process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
            if life < kills:
                lines = chance.randint(3, 25)
                while process.poll() is None and lines_in(folder / f"log-{life}-0") < lines:
                    time.sleep(0.02)
                time.sleep(chance.random() * 0.05)
                kill_all(mark)
            code = process.wait(timeout=120)
        if code == 0:
            return life
        assert life < kills, (folder / f"out-{life}").read_text()
    raise AssertionError("it never ended")


def lines_in(path):
    return path.read_text().count("\n") if path.exists() else 0


def kill_all(mark):
    """Launcher, ranks and workers, whoever their parents are."""
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and f"ETT_TEST_LIFE={mark}".encode() in Path(f"/proc/{entry}/environ").read_bytes():
                os.kill(int(entry), signal.SIGKILL)
        except OSError:  # it is gone, or not ours
            continue


def surviving(folder):
    """By step, what all ranks of the latest life that trained it trained."""
    history = {}
    for log in sorted(folder.glob("log-*"), key=lambda path: int(path.name.split("-")[1])):
        life = int(log.name.split("-")[1])
        for line in log.read_text().splitlines():
            try:
                entry = json.loads(line)
            except ValueError:  # torn by the kill
                continue
            latest, entries = history.get(entry["step"], (life, []))
            history[entry["step"]] = (life, [*entries, entry] if latest == life else [entry])
    return {step: entries for step, (_, entries) in history.items()}


def check(folder, life):
    """Every sample once per epoch; nothing that was trained for nothing is counted."""
    end = json.loads((folder / f"end-{life}-0").read_text())
    history = surviving(folder)
    assert sorted(history) == list(range(1, end["steps"] + 1))
    counts = Counter(sample for entries in history.values() for entry in entries for sample in entry["ids"])
    counts.update(end["left"])
    assert set(counts) == set(range(SIZE))
    assert set(counts.values()) == {EPOCHS}
    return end, history


def test_killed_with_two_ranks_and_resumed_with_three_each_sample_is_trained_once(tmp_path):
    check(tmp_path, lives(tmp_path, (2, 3), (1, 0), "plain", seed=1, kills=1))


@pytest.mark.slow
def test_killed_with_two_ranks_then_one_then_three_each_sample_is_trained_once(tmp_path):
    check(tmp_path, lives(tmp_path, (2, 1, 3), (1, 2, 0), "plain", seed=1, kills=2))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "seed"), [("plain", 0), ("plain", 1), ("stateful", 2), ("stream", 3)])
def test_killed_and_resumed_it_trained_the_same_as_undisturbed_bit_for_bit(kind, seed, tmp_path):
    if kind == "stateful":
        pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    (tmp_path / "killed").mkdir()
    (tmp_path / "whole").mkdir()
    end, history = check(tmp_path / "killed", lives(tmp_path / "killed", (2,), (2,), kind, seed=seed, kills=3))
    wanted, undisturbed = check(tmp_path / "whole", lives(tmp_path / "whole", (2,), (2,), kind, seed=seed, kills=0))
    assert end["digest"] == wanted["digest"]
    assert {step: sorted(map(str, entries)) for step, entries in history.items()} == {step: sorted(map(str, entries)) for step, entries in undisturbed.items()}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_killed_many_times_with_other_ranks_and_workers_each_sample_is_trained_once(seed, tmp_path):
    chance = random.Random(seed)
    worlds, workers = [chance.choice((1, 2, 3)) for _ in range(6)], [chance.choice((0, 1, 2)) for _ in range(6)]
    last = lives(tmp_path, worlds, workers, "plain", seed=seed, kills=5)
    check(tmp_path, last)

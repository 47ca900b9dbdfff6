"""The Checkpointer on several ranks, under real torchrun with gloo: other numbers of ranks, faults on one of them, kills."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from ettrain.boost.checkpoint.folder import CheckpointFolder

PROGRAM = Path(__file__).parent / "programs" / "ranks.py"
SAMPLES = 120


def start(ranks, folder, steps, *words):
    env = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(ranks),
        PROGRAM,
        folder,
        str(steps),
        *words,
    ]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def run(ranks, folder, steps, *words, timeout=150):
    with start(ranks, folder, steps, *words) as process:
        out, err = process.communicate(timeout=timeout)
    return process.returncode, [line.split() for line in out.splitlines() if line], err


def of(lines, kind):
    return [words for words in lines if words[0] == kind]


def newest(folder):
    return next(iter(CheckpointFolder(folder).newest())).step


@pytest.mark.parametrize("kind", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_a_resumed_job_ends_bit_for_bit_like_one_that_was_never_cut(tmp_path, kind):
    code, whole, err = run(2, tmp_path / "whole", 10, "--kind", kind)
    assert code == 0, err
    code, _, err = run(2, tmp_path / "cut", 5, "--kind", kind)
    assert code == 0, err
    code, lines, err = run(2, tmp_path / "cut", 10, "--kind", kind)
    assert code == 0, err
    assert {words[2] for words in of(lines, "R")} == {"5"}
    assert sorted(of(lines, "D")) == sorted(of(whole, "D"))
    assert sorted(of(lines, "S")) == sorted(words for words in of(whole, "S") if int(words[2]) >= 5)


@pytest.mark.parametrize("kind", [pytest.param("ddp", marks=pytest.mark.slow), "fsdp"])
def test_two_ranks_then_one_then_three_train_each_sample_once(tmp_path, kind):
    seen: Counter = Counter()
    digests = []
    step = 0
    for ranks, steps in ((2, 5), (1, 11), (3, 16)):
        code, lines, err = run(ranks, tmp_path, steps, "--kind", kind)
        assert code == 0, err
        assert {int(words[2]) for words in of(lines, "R")} == {step}
        for words in of(lines, "S"):
            seen.update(map(int, words[3:]))
        digests.append({words[2] for words in of(lines, "D")})
        step = steps
    assert seen == Counter(range(SAMPLES)), "16 steps of 2, 1 and 3 ranks are one epoch, its last batch a partial one"
    assert all(len(one) == 1 for one in digests)


@pytest.mark.parametrize("fault", ["stage", pytest.param("write", marks=pytest.mark.slow)])
def test_a_fault_on_one_rank_fails_the_save_on_all_and_nobody_waits(tmp_path, fault):
    code, _, err = run(2, tmp_path, 4)
    assert code == 0, err
    begun = time.monotonic()
    code, lines, err = run(2, tmp_path, 8, "--fault", fault)
    assert code != 0
    assert time.monotonic() - begun < 100
    assert len(of(lines, "D")) == 2, "training went on to its end"
    assert len(of(lines, "X")) == 2, err
    assert all("rank 1" in " ".join(words) for words in of(lines, "X"))
    assert newest(tmp_path) == 4
    code, lines, err = run(2, tmp_path, 8)
    assert code == 0, err
    assert {words[2] for words in of(lines, "R")} == {"4"}


def test_saving_by_time_is_at_the_same_step_on_all_ranks(tmp_path):
    code, lines, err = run(2, tmp_path, 60, "--every", "1s", "--pause", "0.08")
    assert code == 0, err
    assert not of(lines, "X")
    assert "not saved" not in err
    assert newest(tmp_path) == 60


@pytest.mark.slow
def test_ranks_that_are_killed_again_and_again_lose_nothing_and_repeat_nothing(tmp_path):
    chance = random.Random(5)
    history: dict[int, list] = {}
    attempts = 12
    for attempt in range(attempts + 1):
        last = attempt == attempts
        expected = newest(tmp_path) if tmp_path.exists() and any(CheckpointFolder(tmp_path).newest()) else 0
        process = start(2, tmp_path, expected + 30 if last else 100_000, "--pause", "0.02")
        lines = []
        deadline = None
        for line in process.stdout:
            words = line.split()
            if not words:
                continue
            lines.append(words)
            if words[0] == "R":
                assert int(words[2]) == expected
                deadline = deadline or time.monotonic() + chance.uniform(0.1, 3)
            if not last and deadline is not None and time.monotonic() > deadline:
                os.killpg(process.pid, signal.SIGKILL)
                workers = [
                    int(pid)
                    for pid in subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True, check=False).stdout.split()
                ]
                for worker in workers:
                    os.kill(worker, signal.SIGKILL)
                break
        process.kill()
        process.communicate()
        for words in of(lines, "S"):
            if len(words) > 3:
                history.setdefault(int(words[2]), []).append((attempt, words[1], words[3:]))
    seen: Counter = Counter()
    for told in history.values():
        final = max(attempt for attempt, _, _ in told)
        for attempt, _, ids in told:
            if attempt == final:
                seen.update(map(int, ids))
    assert max(seen.values()) - min(seen[i] for i in range(SAMPLES)) <= 1

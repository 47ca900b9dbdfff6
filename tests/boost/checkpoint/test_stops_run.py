"""A real training under `ett run` and torchrun that is told to stop: it saves, stays a planned stop, and goes on where it was."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ettrain.boost.checkpoint.folder import CheckpointFolder

PROGRAM = Path(__file__).parent / "programs/stopped.py"
CLI = [sys.executable, "-c", "import sys; from ettrain.cli import main; sys.exit(main())"]


def start(tmp_path, launcher, steps, **env):
    command = [*CLI, "run", "--quiet", "--job", "j", "--runs", tmp_path / "runs", "--", *launcher, PROGRAM, tmp_path / "ck", steps]
    return subprocess.Popen(
        list(map(str, command)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **env},
    )


def until(process, pattern, count=1):
    text = ""
    while len(re.findall(pattern, text)) < count:
        line = process.stdout.readline()
        assert line, text
        text += line
    return text


def asked(tmp_path, *words):
    return json.loads(
        subprocess.run([*CLI, *words, "j", "--runs", str(tmp_path / "runs"), "--json"], capture_output=True, text=True, check=True).stdout
    )


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_it_saves_stays_a_planned_stop_and_goes_on_where_it_was(tmp_path, ranks):
    launcher = (
        [sys.executable] if ranks == 1 else [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", ranks, "--standalone"]
    )
    process = start(tmp_path, launcher, 10_000)
    until(process, r"rank \d trains", ranks)
    time.sleep(2.0)  # well into the loop, past the first step's preparation
    process.send_signal(signal.SIGTERM)
    text = process.communicate(timeout=120)[0]
    assert process.returncode != 0
    assert re.search(r"told to stop by SIGTERM, (30|29) s are left: saving step \d+", text), text
    newest = next(CheckpointFolder(tmp_path / "ck").newest())
    assert newest.step > 5
    assert newest.manifest.job == "j"
    told = asked(tmp_path, "report")
    assert told["saves"] == 1  # the Checkpointer's, and no trial of its own
    assert [one["kind"] for one in told["incidents"]] == ["preemption"]
    assert "its state was saved first" in json.dumps(told["incidents"])
    assert told["number_of_failures"] == 0
    assert told["unsaved_s"] < 0.1 * told["effective_s"]
    assert json.loads((tmp_path / "runs/j/learned/failures.json").read_text())["own"]["failures"] == 0  # it cost nothing

    again = start(tmp_path, launcher, newest.step + 20)
    text = again.communicate(timeout=120)[0]
    assert again.returncode == 0, text
    for rank in range(ranks):
        assert f"rank {rank} starts at {newest.step}\n" in text
        assert f"rank {rank} finished at {newest.step + 20}\n" in text
    told = asked(tmp_path, "report")
    assert told["incidents"][0]["resumed_step"] == newest.step
    assert told["incidents"][0]["unsaved_s"] < 0.5 * told["effective_s"]


@pytest.mark.slow
def test_watch_shows_what_is_at_risk_and_when_the_next_save_is_due(tmp_path):
    process = start(tmp_path, [sys.executable], 100_000, EVERY="3s")
    try:
        until(process, r"rank \d trains")
        deadline = time.monotonic() + 60
        look = {}
        while not (look.get("at_risk") or {}).get("saved") and time.monotonic() < deadline:
            time.sleep(0.3)
            look = asked(tmp_path, "watch", "--once")
        risk = look["at_risk"]
        assert risk["saved"]
        assert risk["since_step"] > 0
        assert 0 <= risk["steps"] < look["ranks"][0]["step"]
        assert 0 <= risk["next_save_s"] <= 3
        assert risk["why"] == "every 3 s, as asked"
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)

"""examples/dlrm, unmodified, saves in the background: the same weights and files as without, also after kills at random."""

import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from ettrain.jobpaths import JobPaths

DLRM = Path(__file__).resolve().parents[3] / "examples" / "dlrm"
BIN = Path(sys.executable).parent
WORDS = ("--steps", "120", "--save-every", "10", "--batch-size", "64", "--workers", "1", "--eval-rows", "256", "--table-size", "2000", "--log-every", "20")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("dlrm") / "criteo.tsv"
    subprocess.run([sys.executable, DLRM / "make_data.py", "--out", path, "--rows", "20000"], check=True, capture_output=True)
    return path


def start(folder, data, *ett):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ETT_")} | {"OMP_NUM_THREADS": "1"}
    command = [BIN / "torchrun", "--standalone", "--nproc-per-node", "2", DLRM / "train.py", "--data", data, "--out", folder / "out", *WORDS]
    before = [BIN / "ett", "run", "--runs", folder / "runs", "--job", "dlrm", *ett, "--"] if ett else []
    folder.mkdir()
    with (folder / "log").open("wb") as log:
        return subprocess.Popen([*map(str, before + command)], env=environment, stdout=log, stderr=log)


def end(process, folder):
    assert process.wait(240) == 0, (folder / "log").read_text()[-3000:]
    return (folder / "out/checkpoint.pt").read_bytes()


@pytest.fixture(scope="module")
def plain(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("plain") / "job"
    return end(start(folder, data), folder)


def test_the_last_checkpoint_is_the_same_byte_for_byte(tmp_path, data, plain):
    folder = tmp_path / "job"
    assert end(start(folder, data, "--async-checkpoint"), folder) == plain
    assert os.listdir(folder / "out") == ["checkpoint.pt"]


def test_killed_at_random_it_goes_on_from_the_last_whole_checkpoint_to_the_same_weights(tmp_path, data, plain):
    folder = tmp_path / "job"
    chance = random.Random(7)
    process = start(folder, data, "--async-checkpoint", "--restarts", "8")
    kills = 0
    while process.poll() is None and kills < 3:
        time.sleep(0.2)
        pids = training(folder, newest=kills)
        if pids:
            time.sleep(chance.uniform(0.0, 1.0))
            os.kill(chance.choice(pids), signal.SIGKILL)
            kills += 1
    whole, cut = (torch.load(io.BytesIO(data)) for data in (plain, end(process, folder)))
    assert [name for name, tensor in whole["model"].items() if not torch.equal(tensor, cut["model"][name])] == []
    assert whole["progress"] == cut["progress"]
    assert kills == 3
    log = (folder / "log").read_text()
    assert log.count("resumed at step") >= 1


def training(folder, newest):
    """The ranks of that attempt, once they train."""
    attempts = JobPaths(folder / "runs" / "dlrm").attempt_names()
    if len(attempts) <= newest:
        return []
    found = []
    for journal in (folder / "runs" / "dlrm" / "attempts" / attempts[newest]).glob("rank-0000?.jsonl"):
        lines = [json.loads(line) for line in journal.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
        if any(line["k"] == "prog" and line["step"] >= 16 for line in lines):  # a save was begun at 10
            found.append(lines[0]["pid"])
    return sorted(found)

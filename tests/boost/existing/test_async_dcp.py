"""`ett run --async-checkpoint` and `dcp.save`: the same files, later, and never half of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "programs" / "sharded.py"
BIN = Path(sys.executable).parent


def run(folder, *words, ett=(), code=0, **env):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ETT_")} | {"OMP_NUM_THREADS": "1"} | env
    command = [BIN / "torchrun", "--standalone", "--nproc-per-node", "2", PROGRAM, *words]
    before = [BIN / "ett", "run", "--runs", "runs", "--job", "d", *ett, "--"] if ett else []
    done = subprocess.run([*map(str, before + command)], cwd=folder, env=environment, capture_output=True, text=True, timeout=150, check=False)
    assert (done.returncode == 0) == (code == 0), f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else {}


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("__*"))}


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dcp")
    run(folder, "plain")
    seen = run(folder, "later", "again", ett=("--async-checkpoint",), DISK="0.4")
    return folder, seen


def test_the_shards_are_the_same_byte_for_byte_though_the_state_changed_at_once(both):
    folder, _ = both
    plain, later = files(folder / "plain"), files(folder / "later")
    assert later.pop("step-4/__0_0.distcp")  # saved again
    assert later.pop("step-4/__1_0.distcp")
    assert {name: data for name, data in plain.items() if not name.startswith("step-4")} == later


def test_the_call_returns_before_the_disk_is_done_and_a_barrier_waits(both):
    _, seen = both
    assert seen["returned_s"] < seen["done_s"] / 2
    assert ".metadata" in seen["names"]


def test_the_metadata_that_the_call_returns_is_there_when_it_is_looked_at(both):
    assert both[1]["tensors"] > 4


def test_a_save_over_a_checkpoint_is_left_as_it_is(both):
    assert ".metadata" in both[1]["names again"]


def test_the_report_counts_what_blocked_and_what_became_durable(both):
    folder, _ = both
    kinds = [json.loads(line) for line in (folder / "runs/d/attempts/000/rank-00000.jsonl").read_text().splitlines()]
    saves = [one for one in kinds if one.get("part") == "dcp.save" and one.get("pending")]
    commits = [one for one in kinds if one["k"] == "commit"]
    assert len(saves) == len(commits) == 4
    assert all(one["ok"] for one in commits)


@pytest.mark.slow
def test_a_rank_killed_during_the_write_leaves_no_metadata_and_the_others_end(tmp_path):
    run(tmp_path, "out", "killed", ett=("--async-checkpoint",), DISK="0.5", code=1)
    assert not (tmp_path / "out/step-4/.metadata").exists()
    assert (tmp_path / "out/step-3/.metadata").exists()

"""`ett run --async-checkpoint` on programs that know nothing of it: what they see stays as it was, and what is on the disk is always whole."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

PROGRAMS = Path(__file__).parent / "programs"
ETT = str(Path(sys.executable).parent / "ett")


def ett(folder, *words, code=0, **env):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ETT_")} | {"OMP_NUM_THREADS": "1"} | env
    done = subprocess.run([ETT, *map(str, words)], env=environment, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


SCENARIOS = ("bytes_same", "appears_when_whole", "copied", "looks", "replaced", "follows", "forked", "fails")


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("async")
    done = ett(
        folder, "run", "--runs", "runs", "--job", "a", "--async-checkpoint", "--", sys.executable, PROGRAMS / "unmodified.py", *SCENARIOS
    )
    return json.loads(done.stdout.strip().splitlines()[-1]) | {"stderr": done.stderr}


def test_the_file_is_the_same_byte_for_byte(seen, tmp_path):
    done = subprocess.run(
        [sys.executable, PROGRAMS / "unmodified.py", "bytes_same"], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120
    )
    plain = json.loads(done.stdout)["bytes_same"]
    assert seen["bytes_same"] == plain
    assert plain["mode"] == "0o640"


def test_a_new_file_appears_when_it_is_whole_and_the_one_before_stays_until_then(seen):
    assert seen["appears_when_whole"] == {"meanwhile": True, "others": "a.pt", "loaded": 2.0}


def test_what_the_program_changes_after_the_call_is_not_in_the_file(seen):
    assert seen["copied"] == 3.0


def test_every_look_of_the_program_at_the_file_waits_for_it(seen):
    assert [name for name, waited in seen["looks"].items() if not waited] == []


def test_a_file_written_beside_renamed_and_an_older_one_removed_keep_their_order_without_waiting(seen):
    assert seen["replaced"] == {"waited": False, "meanwhile": 1.0, "older": True, "exists": [True, False, False], "after": 2.0}


def test_what_names_the_save_or_makes_room_for_it_is_not_there_before_it(seen):
    assert seen["follows"] == {"pointer": True, "marker": True, "link": True, "folder": True}


def test_a_forked_child_saves_by_itself_and_waits_for_nothing(seen):
    assert seen["forked"] == [0, True]


def test_a_failed_write_is_raised_at_the_next_save_and_nothing_after_it_was_done(seen):
    fails = seen["fails"]
    assert fails["told"][0] == 28
    assert "in the background" in fails["told"][1]
    assert fails["stays"] == [True, True]
    assert fails["goes on"] == 4.0
    assert "a.pt.tmp in the background failed: OSError" in seen["stderr"]


def test_a_failed_write_stops_the_removal_that_relied_on_it(seen):
    assert seen["fails"]["no removal"] == 5


def test_what_torch_refuses_is_refused_in_its_own_words(seen):
    kind, there = seen["fails"]["unpicklable"]
    assert (kind, there) == ("AttributeError", False) or (kind, there) == ("PicklingError", False)
    assert seen["fails"]["nowhere"] == "RuntimeError"


@pytest.mark.parametrize(
    ("way", "code"), [("exit", 3), pytest.param("error", 1, marks=pytest.mark.slow), pytest.param("spawned", 0, marks=pytest.mark.slow)]
)
def test_the_process_does_not_end_before_its_saves(tmp_path, way, code):
    ett(tmp_path, "run", "--async-checkpoint", "--", sys.executable, PROGRAMS / "ending.py", way, "out", code=code, DISK="0.5")
    assert torch.load(tmp_path / "out/checkpoint.pt")["step"] == 20


def test_a_failure_that_the_program_was_not_told_becomes_the_exit_code(tmp_path):
    done = ett(tmp_path, "run", "--async-checkpoint", "--", sys.executable, PROGRAMS / "ending.py", "full", "out", code=1)
    assert "checkpoint.pt in the background failed: OSError: [Errno 28]" in done.stderr
    assert torch.load(tmp_path / "out/checkpoint.pt")["step"] == 10


def test_a_process_that_vanishes_loses_only_the_new_file(tmp_path):
    ett(tmp_path, "run", "--async-checkpoint", "--", sys.executable, PROGRAMS / "ending.py", "vanish", "out", DISK="20")
    assert os.listdir(tmp_path / "out") == ["checkpoint.pt"]
    assert torch.load(tmp_path / "out/checkpoint.pt")["step"] == 10


def test_work_after_a_save_that_was_not_whole_when_the_process_was_killed_is_unsaved(tmp_path):
    words = ("run", "--runs", "runs", "--job", "k", "--restarts", "1", "--async-checkpoint", "--", sys.executable, PROGRAMS / "ending.py")
    done = ett(tmp_path, *words, "killed", "out", DISK="3")
    assert "resumed at 10" in done.stdout
    report = json.loads(ett(tmp_path, "report", "k", "--runs", "runs", "--json").stdout)
    (incident,) = report["incidents"]
    assert incident["resumed_step"] == 10
    assert incident["unsaved_s"] > 0.02 * 25 * 0.9  # 25 steps of 20 ms


def test_on_a_full_disk_the_program_is_told_and_keeps_the_file_before(tmp_path):
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "none", str(tmp_path)], capture_output=True, check=False).returncode:
        pytest.skip("no permission to mount a small file system")
    try:
        command = ("run", "--runs", tmp_path.parent / "full-runs", "--async-checkpoint", "--", sys.executable, PROGRAMS / "fulldisk.py", tmp_path)
        seen = json.loads(ett(tmp_path.parent, *command).stdout.splitlines()[-1])
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)
    assert seen == {"raised": [[3, "RuntimeError"], ["replace", 28], "unpicklable"], "a": 1.0}


def test_the_private_names_of_torch_are_there():
    from torch.distributed.checkpoint import state_dict_saver

    from ettrain.boost.existing import dcpsaving, saving

    assert [name for name in saving.PRIVATE if not hasattr(torch.serialization, name)] == []
    assert [name for name in dcpsaving.PRIVATE if not hasattr(state_dict_saver, name)] == []
    assert hasattr(torch.serialization._serialization_tls, "skip_data")

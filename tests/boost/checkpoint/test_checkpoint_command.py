"""`ett checkpoint`: what it prints of sound, unfinished, damaged and foreign checkpoints, and how it ends."""

import json
import os
import subprocess
import sys

import pytest
from ckptfolders import contents_of, save, write

from ettrain.boost.checkpoint.folder import CheckpointFolder
from ettrain.cli import main


@pytest.fixture
def folder(tmp_path):
    folder = CheckpointFolder(tmp_path / "ck")
    owner = folder.own({"job": "demo"})
    for step in (20, 40, 60):
        save(
            folder,
            step,
            job="demo",
            attempt=1,
            metrics={"loss": 0.25},
            position={"epoch": 1, "samples": 9600},
            seconds={"blocking": 0.1},
            versions={"torch": "2.13"},
        )
    owner.release()
    return folder


def run(capsys, *words):
    code = main(["checkpoint", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def spoil(folder, step=40):
    write(folder, f"step-{step:08d}", {"__0_0.distcp": b"x" * len(contents_of(step)["__0_0.distcp"])})


def test_ls_lists_the_newest_first_with_its_state(capsys, folder):
    write(folder, folder.claim(80), {"__0_0.distcp": b"half"})
    code, out, _ = run(capsys, "ls", folder.address)
    lines = out.splitlines()
    assert code == 0
    assert [line.split()[0] for line in lines] == ["step-00000080", "step-00000060", "step-00000040", "step-00000020"]
    assert "unfinished: its save is under way" in lines[0]
    assert f"process {os.getpid()} on " in lines[0]
    assert "  5.0 kB  2 ranks   ok  job demo" in lines[1]
    folder._let_go("step-00000080")
    folder._saving.clear()
    assert "unfinished: its save did not finish (job demo, process " in run(capsys, "ls", folder.address)[1]


def test_ls_tells_a_missing_file_without_reading_any(capsys, folder):
    os.unlink(os.path.join(folder.path("step-00000040"), "__1_0.distcp"))
    assert "DAMAGED: __1_0.distcp is missing" in run(capsys, "ls", folder.address)[1]


def test_verify_reads_and_ends_with_1_where_one_is_damaged(capsys, folder):
    assert run(capsys, "verify", folder.address)[0] == 0
    spoil(folder)
    code, out, _ = run(capsys, "verify", folder.address)
    assert code == 1
    assert "step-00000060       ok  5.0 kB read in " in out
    assert "step-00000040       DAMAGED: __0_0.distcp is damaged: its checksum is" in out
    assert run(capsys, "verify", folder.address, "step-00000060")[0] == 0
    assert run(capsys, "verify", folder.address, "step-00000040")[0] == 1
    code, out, _ = run(capsys, "verify", folder.address, "--fast")
    assert code == 0
    assert out.count("ok  by sizes only") == 3


def test_an_unfinished_one_is_no_damage_unless_it_was_asked_for(capsys, folder):
    folder.claim(80)
    assert run(capsys, "verify", folder.address)[0] == 0
    assert run(capsys, "verify", folder.address, "step-00000080")[0] == 1


def test_a_plain_dcp_checkpoint_is_told_apart(capsys, folder, tmp_path):
    os.makedirs(folder.path("step-00000070"))
    write(folder, "step-00000070", {".metadata": b"x"})
    assert "not ours: a plain DCP checkpoint without manifest.json" in run(capsys, "ls", folder.address)[1]
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain/.metadata").write_bytes(b"x")
    assert "is a plain DCP checkpoint itself" in run(capsys, "ls", tmp_path / "plain")[1]


def test_show_tells_the_newest_in_words(capsys, folder):
    code, out, _ = run(capsys, "show", folder.address)
    assert code == 0
    assert out.splitlines()[0] == f"step-00000060 in {folder.address}"
    for part in (
        "job        demo, attempt 1",
        "ranks      2",
        "5.0 kB in 4 files",
        "epoch 1, samples 9,600",
        "loss 0.25",
        "blocking 100 ms",
        "torch 2.13",
        "__0_0.distcp",
    ):
        assert part in out
    assert run(capsys, "show", f"{folder.address}/step-00000020/")[1].startswith("step-00000020 in ")


def test_json_is_for_programs(capsys, folder):
    spoil(folder)
    rows = json.loads(run(capsys, "verify", folder.address, "--json")[1])
    assert [(row["name"], row["state"], row["ok"], row["world"], row["bytes"]) for row in rows] == [
        ("step-00000060", "finished", True, 2, 5000), ("step-00000040", "damaged", False, 2, 5000), ("step-00000020", "finished", True, 2, 5000)]  # fmt: skip
    assert "checksum" in rows[1]["why"]
    assert json.loads(run(capsys, "show", folder.address, "--json")[1])["step"] == 60
    assert json.loads(run(capsys, "ls", folder.address, "--json")[1])[0]["age_s"] > 0


def test_what_cannot_be_is_said_in_one_line(capsys, folder, tmp_path):
    assert run(capsys, "ls", tmp_path / "nosuch") == (2, "", f"ett checkpoint: {tmp_path}/nosuch: no such folder.\n")
    code, _, err = run(capsys, "verify", folder.address, "step-00000099")
    assert code == 2
    assert "no checkpoint 'step-00000099' there. Newest: step-00000060, step-00000040, step-00000020." in err
    (tmp_path / "empty").mkdir()
    assert run(capsys, "show", tmp_path / "empty")[::2] == (2, f"ett checkpoint: no checkpoint in {tmp_path}/empty.\n")
    assert run(capsys, "ls", tmp_path / "empty")[:2] == (0, f"no checkpoint in {tmp_path}/empty\n")
    other = CheckpointFolder(tmp_path / "empty")
    name = other.claim(5)
    code, _, err = run(capsys, "show", other.address, name)
    assert (code, "its save is under way" in err) == (7, True)
    assert "no finished checkpoint" in run(capsys, "show", other.address)[2]


def test_a_hostile_manifest_cannot_redraw_the_terminal(capsys, tmp_path):
    folder = CheckpointFolder(tmp_path)
    save(
        folder,
        1,
        job="\x1b[2Jboo",
        metrics={"\x1b[31mloss": 1.0},
        position={"at": "\r\x1b[K"},
        seconds={"\x07": -1.0},
        versions={"x": "\u202e"},
        more={"deep": {"\x1b": "\x1b"}},
    )
    for action in ("ls", "show", "verify"):
        out = run(capsys, action, tmp_path)[1]
        assert out.isprintable() or all(char.isprintable() or char == "\n" for char in out)


def test_an_object_store_is_shown_alike(capsys):
    folder = CheckpointFolder("memory://shown/ck")
    save(folder, 3)
    assert "kB  2 ranks   ok" in run(capsys, "ls", "memory://shown/ck")[1]
    assert run(capsys, "verify", "memory://shown/ck/step-00000003")[0] == 0


def test_it_needs_no_torch(folder):
    code = f"import sys; sys.modules['torch'] = None; from ettrain.cli import main; sys.exit(main(['checkpoint', 'verify', {folder.address!r}]))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (output.returncode, output.stderr) == (0, "")
    assert output.stdout.count(" ok ") == 3

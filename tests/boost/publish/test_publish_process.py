"""Real publishers beside real jobs: they outlive them, cost them nothing, keep to their memory, and a failure shows in the exit code."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pubs
import pytest

from ettrain.boost.publish import launch
from ettrain.boost.publish.target import Place, places
from ettrain.supervise import processes

pubmodels = pubs.pubmodels
TRAIN = pubs.PROGRAMS / "pubtrain.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def report(runs, job):
    return json.loads(pubs.ett("report", job, "--runs", runs, "--json").stdout)


def test_a_publisher_outlives_torchrun_and_ett_run_and_is_billed_beside_the_job(tmp_path):
    runs, to = tmp_path / "runs", tmp_path / "to"
    ended = pubs.ett("run", "--runs", runs, "--job", "j", "--", *TORCHRUN, pubs.PROGRAMS / "pubckpt.py", tmp_path / "ck", to, "pubmodels:slow")
    assert ended.returncode == 0, ended.stderr
    assert "is still being published: ett publish wait j" in ended.stderr
    (place,) = places(to)
    at_the_end = report(runs, "j")
    assert at_the_end["publishes"][0]["outcome"] == "unfinished"
    assert any("is not finished" in note["text"] for note in at_the_end["notes"])
    assert pubs.ett("publish", "wait", "j", "--runs", runs).returncode == 0
    told = report(runs, "j")
    assert (told["wall_ns"], told["ett_pct"], told["attempts"]) == (at_the_end["wall_ns"], at_the_end["ett_pct"], at_the_end["attempts"])
    (published,) = told["publishes"]
    assert (published["outcome"], published["step"], published["tries"]) == ("published", 3, 1)
    assert 0 < published["cpu_s"] and published["wall_s"] >= 4
    assert published["time_to_updated_model_s"] >= 4 and published["after_last_step_s"] >= published["time_to_updated_model_s"]
    text = pubs.ett("report", "j", "--runs", runs).stdout
    assert "PUBLISHED OFF THE DEVICES" in text and "ranker" in text
    manifest = json.loads((to / "ranker" / "current" / "manifest.json").read_text())
    assert manifest["job"] == str(runs / "j") and manifest["checkpoint"]["verified"].startswith("checksums of")
    assert manifest["checkpoint"]["address"].endswith(max(path.name for path in (tmp_path / "ck").iterdir() if path.name.startswith("step-")))
    assert len(list((runs / "j" / "attempts").iterdir())) == 1, "the publisher is no attempt of the job"
    assert "current" in pubs.ett("publish", "ls", to).stdout
    shown = json.loads(pubs.ett("publish", "show", place.root.name, "--runs", runs, "--json").stdout)
    assert shown["state"] == "published" and shown["manifest"]["id"] == place.root.name


def test_a_failed_publication_is_in_the_exit_code_of_the_job(tmp_path):
    runs, to = tmp_path / "runs", tmp_path / "to"
    ended = pubs.ett("run", "--wait-publish", "--runs", runs, "--job", "j", "--", sys.executable, TRAIN, tmp_path / "step-2", to, "pubmodels:weights_only", "wrong")
    assert ended.returncode == 75, ended.stderr
    assert "is not published, failed: the model built by its function" in ended.stderr and "The model before it stays current" in ended.stderr
    told = report(runs, "j")
    assert told["publishes"][0]["outcome"] == "failed" and told["status"] == "finished"
    assert told["saves"] == 1, "what is asked for is no checkpoint"
    assert json.loads((places(to)[0].root / "request.json").read_text())["model"]["file"] == str(TRAIN)
    assert any("Publishing ranker failed at check" in note["text"] for note in told["notes"])
    assert pubs.ett("publish", "wait", "j", "--runs", runs).returncode == 75
    listed = pubs.ett("publish", "ls", "--runs", runs).stdout
    assert "failed" in listed and "log:" in listed and "Next: ett publish retry" in listed


@pytest.fixture
def large(tmp_path, monkeypatch):
    """A model of 64 MiB, and how to ask for it."""
    model, _ = pubs.trained(pubmodels.build_large)
    path = pubs.write(tmp_path / "ck", model)

    def ask(**more):
        publication = pubs.ask(monkeypatch, path, tmp_path / "to", live=model, model=pubmodels.build_large, **more)
        started = time.monotonic()
        ended = subprocess.run(launch.words(Place(publication.folder), sys.executable), capture_output=True, text=True, env=launch.environment({**os.environ, "OMP_NUM_THREADS": "1"}), check=False)
        assert time.monotonic() - started < 120
        return publication, ended

    return ask


@pytest.mark.slow
def test_a_publisher_keeps_to_its_memory_or_says_so(large):
    publication, ended = large(memory="640MiB", export="int8")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    manifest = json.loads((publication.current / "manifest.json").read_text())
    assert 0 < manifest["peak_bytes"] <= 640 << 20
    publication, ended = large(memory="900MiB", export=pubmodels.greedy)
    assert ended.returncode == 75
    assert "it needs more memory than was said (memory=900MiB)" in publication.status.why


def test_a_publisher_has_no_process_group_no_device_and_no_recorder():
    environ = {
        "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "x", "TORCHELASTIC_RUN_ID": "1", "ETT_JOB_DIR": "/j", "ETT_RUNS": "/r",
        "PYTHONPATH": f"{launch.HOME}/ettrain/record/inject:/mine", "HOME": "/home/me", "CUDA_VISIBLE_DEVICES": "0,1",
    }  # fmt: skip
    left = launch.environment(environ)
    assert {name for name in environ if name in left} == {"ETT_RUNS", "PYTHONPATH", "HOME", "CUDA_VISIBLE_DEVICES"}
    assert (left["PYTHONPATH"], left["CUDA_VISIBLE_DEVICES"], left["ETT_DETACHED"]) == ("/mine", "", "1")


def test_what_is_meant_to_outlive_the_attempt_is_no_family_with_all_below_it():
    code = "import subprocess, sys; p = subprocess.Popen(['sleep', '30']); print(p.pid, flush=True); p.wait()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env={**os.environ, "ETT_DETACHED": "1"}, text=True) as detached:
        below = int(detached.stdout.readline())
        with subprocess.Popen(["sleep", "30"]) as plain:
            children, living = processes.family(os.getpid())
            assert plain.pid in children and plain.pid in living
            assert not {detached.pid, below} & {*children, *living}
            plain.kill()
        os.kill(below, 9)
        detached.kill()


@pytest.mark.slow
def test_killed_at_random_instants_a_publication_is_finished_in_the_end_and_current_is_always_whole(tmp_path, monkeypatch):
    import random

    model, optimizer = pubs.trained()
    chance = random.Random(4)
    versions = set()
    for step in range(5):
        path, _ = pubs.save(tmp_path / "ck", step, model, optimizer)
        publication = pubs.ask(monkeypatch, path, tmp_path / "to", live=model)
        kills = 0
        while publication.status.state != "published":
            child = subprocess.Popen(launch.words(Place(publication.folder), sys.executable), stdout=subprocess.DEVNULL, env=launch.environment({**os.environ, "OMP_NUM_THREADS": "1"}))
            try:
                child.wait(chance.uniform(0.5, 12) if kills < 3 else 120)
            except subprocess.TimeoutExpired:
                kills += 1
                child.kill()
            child.wait()
            if publication.current.exists():
                manifest = json.loads((publication.current / "manifest.json").read_text())
                for name, one in manifest["files"].items():
                    assert (publication.current / name).stat().st_size == one["bytes"]
        versions.add(publication.status.version)
    assert len(versions) == 5 == len(list(Path(tmp_path, "to", "ranker", "versions").iterdir()))


@pytest.mark.slow
def test_the_example_publishes_its_model(tmp_path):
    example = Path(__file__).resolve().parents[3] / "examples" / "dlrm"
    subprocess.run([sys.executable, example / "make_data.py", "--rows", "3000", "--out", tmp_path / "criteo.tsv"], check=True, capture_output=True)
    small = ["--table-size", "100", "--dim", "8", "--bottom-mlp", "16", "--top-mlp", "16", "--eval-rows", "500", "--workers", "0", "--batch-size", "64", "--steps", "8"]
    words = [*TORCHRUN, example / "publish_model.py", "--data", tmp_path / "criteo.tsv", "--out", tmp_path / "out", "--publish", tmp_path / "to", *small]
    ended = pubs.ett("run", "--wait-publish", "--runs", tmp_path / "runs", "--job", "j", "--", *words)
    assert ended.returncode == 0, ended.stderr
    (published,) = report(tmp_path / "runs", "j")["publishes"]
    assert (published["outcome"], published["step"]) == ("published", 8) and published["time_to_updated_model_s"] > 0

"""Publishers of other machines: submitit's own executor runs one here for real; the Job for Kubernetes has the shape its API asks for."""

import json
import os
import shutil
import subprocess
from dataclasses import replace

import pubs
import pytest

from ettrain.boost.publish import launch
from ettrain.boost.publish.target import Place
from ettrain.errors import MissingExtraError

pubmodels = pubs.pubmodels


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # submitit's local executor leaves its process to itself
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_submitit_runs_a_publisher_without_the_trainers_rank(tmp_path, monkeypatch):
    submitit = pytest.importorskip("submitit")
    model, _ = pubs.trained()
    path, _ = pubs.save(tmp_path / "ck", 3, model)
    monkeypatch.setenv("ETT_JOB_DIR", str(tmp_path / "no-such-job"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    publication = pubs.ask(
        monkeypatch, path, tmp_path / "to", live=model, export=pubmodels.weights_only, where="slurm", resources={"cluster": "local", "timeout_min": 2}
    )
    number = json.loads((publication.folder / "state.jsonl").read_text().splitlines()[0])
    assert (number["state"], number["where"]) == ("asked", "slurm")
    assert publication.wait(60).state == "published"
    assert submitit.__version__
    assert os.path.isdir(publication.folder / "slurm")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("sinfo") is None or subprocess.run(["sinfo"], capture_output=True, check=False).returncode != 0, reason="no Slurm here")
def test_slurm_runs_a_publisher(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    model, _ = pubs.trained()
    path, _ = pubs.save(tmp_path / "ck", 3, model)
    publication = pubs.ask(monkeypatch, path, tmp_path / "to", live=model, where="slurm", memory="1GiB", resources={"cpus_per_task": 1, "timeout_min": 5})
    assert publication.wait(120).state == "published"
    assert "published: step-00000003" in (publication.folder / "log.txt").read_text()


def test_without_submitit_the_install_line_is_printed(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(MissingExtraError, match=r"where='slurm' needs an extra: pip install 'ettrain\[slurm\]'"):
        pubs.ask(monkeypatch, tmp_path / "ck", tmp_path / "to", where="slurm")


def job(tmp_path, monkeypatch, **more):
    resources = {"image": "registry/train:1", "namespace": "ml", "volumes": [{"name": "data", "hostPath": {"path": "/data"}}], "volume_mounts": [{"name": "data", "mountPath": "/data"}], "env": {"A": 1}}
    publication = pubs.ask(monkeypatch, tmp_path / "ck", tmp_path / "to", where="k8s", resources=resources, memory="2GiB", **more)
    return publication, json.loads((publication.folder / "job.json").read_text())


def test_a_kubernetes_job_is_written_and_the_line_that_submits_it_said(tmp_path, monkeypatch, capsys):
    publication, told = job(tmp_path, monkeypatch)
    assert f"kubectl apply -f {publication.folder}/job.json" in capsys.readouterr().err
    assert set(told) == {"apiVersion", "kind", "metadata", "spec"} and (told["apiVersion"], told["kind"]) == ("batch/v1", "Job")
    assert told["metadata"]["namespace"] == "ml"
    spec = told["spec"]
    assert set(spec) <= {"backoffLimit", "template", "ttlSecondsAfterFinished", "completions", "parallelism", "activeDeadlineSeconds"}
    pod = spec["template"]["spec"]
    assert pod["restartPolicy"] in ("Never", "OnFailure"), "a Job's pods may not have the default, Always"
    (container,) = pod["containers"]
    assert container["command"] == ["ett", "publish", "run", str(publication.folder)]
    assert container["resources"]["limits"] == {"cpu": "2", "memory": "2304Mi"}
    assert container["env"] == [{"name": "A", "value": "1"}] and all(isinstance(one["value"], str) for one in container["env"])
    assert {mount["name"] for mount in container["volumeMounts"]} <= {volume["name"] for volume in pod["volumes"]}


@pytest.mark.parametrize("name", ["ranker", "Ranker_v2.1", "r" * 64, "a-"])
def test_the_jobs_name_is_one_of_kubernetes(tmp_path, monkeypatch, name):
    import re

    _, told = job(tmp_path, monkeypatch, name=name)
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", told["metadata"]["name"]) and len(told["metadata"]["name"]) <= 63
    for label in told["metadata"]["labels"].values():
        assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", label)


def test_what_the_jobs_command_reads_is_in_the_requests_folder(tmp_path, monkeypatch):
    publication, _ = job(tmp_path, monkeypatch)
    assert Place(publication.folder).request() == replace(publication.request, number=publication.id)
    assert launch.words(Place(publication.folder), "python")[-1] == str(publication.folder)

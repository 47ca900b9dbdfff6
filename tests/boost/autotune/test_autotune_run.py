"""Autotuning for real, on the CPU: the first start searches, the second with the winners checked in does not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ettrain.tuned import from_toml

PROGRAM = Path(__file__).parent / "programs" / "gemms.py"
ETT = str(Path(sys.executable).parent / "ett")


class Lab:
    """A runs folder; each run gets an Inductor cache folder of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.env = {key: value for key, value in os.environ.items() if not key.startswith(("ETT_", "TORCHINDUCTOR"))} | {"OMP_NUM_THREADS": "1"}

    def ett(self, *words, code=0, **env):
        done = subprocess.run([ETT, *map(str, words)], env=self.env | env, cwd=self.folder, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def run(self, job, *words, ett=()):
        """(the program's own figures, everything on stderr)."""
        cache = str(self.folder / f"inductor-{job}")
        done = self.ett("run", "--runs", "runs", "--job", job, *ett, "--", sys.executable, PROGRAM, *words, TORCHINDUCTOR_CACHE_DIR=cache)
        return json.loads(done.stdout.strip().splitlines()[-1]), done.stderr

    def kernels(self, job):
        return json.loads(self.ett("autotune", job, "--runs", "runs", "--json").stdout)["kernels"]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return Lab(tmp_path_factory.mktemp("autotune"))


@pytest.fixture(scope="module")
def searched(lab):
    return lab.run("searched")[0]


@pytest.fixture(scope="module")
def winners(lab, searched):
    lab.ett("autotune", "searched", "--runs", "runs", "--write", "tuned.toml")
    return from_toml((lab.folder / "tuned.toml").read_text())


def test_the_search_is_recorded_with_what_won_and_what_it_took(lab, searched):
    assert searched["searches"] == 1
    (kernel,) = lab.kernels("searched")
    assert (kernel["op"], kernel["searches"], kernel["pinned"], kernel["choices"]) == ("bmm", 1, 0, 2)
    assert kernel["inputs"] == ["float32[4,32,16](512,16,1)", "float32[4,16,32](512,32,1)"]
    assert 0 < kernel["best_ms"] <= kernel["runner_up_ms"]
    assert {kernel["winner"], kernel["runner_up"]} == {"bmm", next(name for name in (kernel["winner"], kernel["runner_up"]) if name.startswith("cpp_"))}
    assert kernel["wall_s"] == kernel["search_s"] > 0
    text = lab.ett("autotune", "searched", "--runs", "runs").stdout
    assert "1 searched for" in text
    assert "--write tuned.toml" in text


def test_the_file_holds_the_winner_and_is_never_overwritten_unasked(lab, winners):
    (winner,) = winners
    assert winner.op == "bmm"
    assert winner.device.startswith("cpu ")
    assert "exists" in lab.ett("autotune", "searched", "--runs", "runs", "--write", "tuned.toml", code=2).stderr


def test_the_next_start_searches_for_nothing_though_the_graph_has_changed(lab, winners):
    pinned, said = lab.run("pinned", "--changed", ett=("--autotune", "tuned.toml"))
    assert pinned["searches"] == 0
    assert pinned["worst"] < 1e-5
    (kernel,) = lab.kernels("pinned")
    assert (kernel["pinned"], kernel["searches"], kernel["winner"]) == (1, 0, winners[0].winner)
    assert "ignored" not in said


@pytest.mark.slow
def test_a_winner_that_does_not_fit_is_ignored_with_its_reason_and_searched_for(lab, winners):
    text = (lab.folder / "tuned.toml").read_text()
    (lab.folder / "other.toml").write_text(text.replace(winners[0].device, "cpu of another kind"))
    figures, said = lab.run("misfit", ett=("--autotune", "other.toml"))
    assert figures["searches"] == 1
    assert said.count("is ignored: measured on cpu of another kind") == 1
    assert [kernel["ignored"] for kernel in lab.kernels("misfit") if kernel["ignored"]] == [
        f"measured on cpu of another kind under {winners[0].version}, this is {winners[0].device} under {winners[0].version}"
    ]


def test_a_file_that_is_none_stops_the_run_before_it_begins(lab):
    (lab.folder / "bad.toml").write_text("format = 1\n[[gemm]]\nop = 'bmm'\n")
    assert "[[gemm]] number 1 lacks" in lab.ett("run", "--runs", "runs", "--autotune", "bad.toml", "--", "true", code=2).stderr
    assert "cannot be read" in lab.ett("run", "--runs", "runs", "--autotune", "absent.toml", "--", "true", code=2).stderr


def test_a_job_that_tuned_nothing_says_so(lab):
    lab.ett("run", "--runs", "runs", "--job", "plain", "--", "true")
    assert "nothing was tuned" in lab.ett("autotune", "plain", "--runs", "runs").stdout
    assert "nothing to write" in lab.ett("autotune", "plain", "--runs", "runs", "--write", "x.toml", code=2).stderr

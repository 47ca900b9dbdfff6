"""examples/lm: it learns, and after a SIGKILL it goes on to the very same end."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

LM = Path(__file__).resolve().parents[2] / "examples" / "lm"
SMALL = ("--batch-size", "16", "--dim", "32", "--layers", "1", "--heads", "2", "--workers", "0", "--eval-documents", "50", "--log-every", "1", "--save-every", "10")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("lm") / "corpus.txt"
    subprocess.run([sys.executable, LM / "make_data.py", "--out", path, "--documents", "400"], check=True, capture_output=True)
    return path


def command(corpus, out, *more):
    return [sys.executable, str(LM / "train.py"), "--data", str(corpus), "--out", str(out), *SMALL, "--epochs", "2", *more]


def test_it_learns_and_goes_on_after_a_kill_to_the_same_end(corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    whole = subprocess.run(command(corpus, tmp_path / "whole"), check=True, capture_output=True, text=True).stdout
    losses = [float(loss) for loss in re.findall(r"^step .* loss ([\d.]+)", whole, flags=re.MULTILINE)]
    assert len(losses) == 44, "two passes over 350 documents, the last batch of each smaller"
    assert losses[-1] < losses[0] - 1
    with subprocess.Popen(command(corpus, tmp_path / "cut"), stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.startswith("step 27 "):
                process.kill()
                break
    again = subprocess.run(command(corpus, tmp_path / "cut"), check=True, capture_output=True, text=True).stdout
    assert "resumed at step 20 (epoch 0, 320 documents into it)" in again
    assert again.strip().endswith("finished at step 44")
    first, second = (torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)["model"] for name in ("whole", "cut"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_another_corpus_is_refused(corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    subprocess.run(command(corpus, tmp_path, "--steps", "1"), check=True, capture_output=True)
    done = subprocess.run(command(corpus, tmp_path, "--steps", "2", "--seed", "5"), capture_output=True, text=True, check=False)
    assert done.returncode
    assert "belongs to other data or another seed" in done.stderr

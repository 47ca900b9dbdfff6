"""examples/dlrm: fast_train.py trains what train.py trains, bit for bit, and starts faster where data is slow to come."""

import importlib.util
import re
import subprocess
import sys

import pytest
from startupjobs import ROOT, clean_environment, torchrun

EXAMPLE = ROOT / "examples/dlrm"
ARGUMENTS = "--steps 12 --save-every 5 --log-every 3 --eval-rows 300 --table-size 200 --dim 8 --batch-size 64 --top-mlp 64 --bottom-mlp 32 --epochs 2".split()


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "criteo.tsv"
    subprocess.run([sys.executable, EXAMPLE / "make_data.py", "--out", path, "--rows", "1200"], check=True, capture_output=True)
    return path


def trained(program, rows, out, *more, ranks=1):
    words = [EXAMPLE / program, "--data", rows, "--out", out, *ARGUMENTS, *more]
    words = torchrun(ranks, *words) if ranks > 1 else list(map(str, words))
    done = subprocess.run([sys.executable, *words], env=clean_environment(), capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return re.sub(r"samples/s .*", "", done.stdout), (out / "checkpoint.pt").read_bytes(), done.stderr


def test_one_rank_trains_the_same_bit_for_bit(rows, tmp_path):
    plain = trained("train.py", rows, tmp_path / "plain")
    fast = trained("fast_train.py", rows, tmp_path / "fast", "--first-batch-delay", "0.5")
    assert fast[:2] == plain[:2]
    assert fast[2] == ""


@pytest.mark.slow
def test_a_resumed_rank_goes_on_the_same_bit_for_bit(rows, tmp_path):
    results = []
    for program in ("train.py", "fast_train.py"):
        trained(program, rows, tmp_path / program, "--steps", "7")
        results.append(trained(program, rows, tmp_path / program))
    assert results[0] == results[1]
    assert "resumed at step 7" in results[1][0]


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [(), ("--compile",)])
def test_two_ranks_train_the_same_bit_for_bit(rows, tmp_path, compiled):
    plain = trained("train.py", rows, tmp_path / "plain", *compiled, ranks=2)
    fast = trained("fast_train.py", rows, tmp_path / "fast", *compiled, ranks=2)
    assert plain[:2] == fast[:2]
    assert "ett" not in fast[2]


@pytest.mark.slow
def test_compiling_hides_behind_a_slow_first_batch(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "bench")
    spec = importlib.util.spec_from_file_location("start_first_batch", ROOT / "bench/start_first_batch.py")
    bench = sys.modules["start_first_batch"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    pair = bench.run_pair(25.0)
    assert pair.same_checkpoint
    assert pair.fast.first_step_s <= pair.bound_s
    assert pair.fast.first_step_s < pair.plain.first_step_s

"""A warm step under a real `ett run`: it is no step, no backward and no first forward; its time is billed to compile."""

import json
import subprocess
import sys

import pytest
from startupjobs import PROGRAMS, clean_environment, ett, ledger_of, recorded, torchrun


@pytest.fixture(scope="module", params=["compiled", pytest.param("plain-said", marks=pytest.mark.slow)])
def pair(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return [recorded(folder, PROGRAMS / "warm.py", f"{request.param}-{way}", job=way) for way in ("cold", "warm")]


def test_it_is_not_counted_as_a_step_and_changes_no_loss(pair):
    (cold, cold_history), (warm, warm_history) = pair
    assert cold == warm
    assert ledger_of(warm_history).steps == ledger_of(cold_history).steps == 6
    assert warm_history.attempts[0].ranks[0].step_source == cold_history.attempts[0].ranks[0].step_source


def test_its_time_is_billed_to_compile_before_the_first_step(pair):
    _, history = pair[1]
    (rank,) = history.attempts[0].ranks
    (warm,) = [span for span in rank.spans if span.label.part == "warm step"]
    assert warm.label.stage == "compile" and warm.end <= rank.marks["first_backward"] <= rank.first_step_t
    assert rank.marks.get("first_forward", rank.marks["first_backward"]) > warm.end
    walls = {leaf.path: leaf.wall_ns for leaf in ledger_of(history).leaves}
    assert walls["idle/start/compile"] >= warm.end - warm.start
    assert rank.faults == 0
    assert all(compiled.function != "warm step" for compiled in rank.compiles)


def test_the_wait_for_the_first_batch_ends_where_the_training_begins(pair):
    for _, history in pair:
        (rank,) = history.attempts[0].ranks
        waits = [span for span in rank.spans if span.label.stage == "get_first_batch_data"]
        assert len(waits) == 2  # iter(loader), and its first next()
        assert waits[1].end <= rank.marks["first_backward"]
    (warm,) = [span for span in rank.spans if span.label.part == "warm step"]
    assert waits[0].end <= warm.start and warm.end <= waits[1].start


def test_what_was_compiled_in_it_is_not_compiled_again(pair):
    if not pair[0][0]["graphs"]:
        pytest.skip("nothing is compiled in this way")
    (cold_rank,), (warm_rank,) = (history.attempts[0].ranks for _, history in pair)
    (warm,) = [span for span in warm_rank.spans if span.label.part == "warm step"]
    assert cold_rank.compiles and all(compiled.end <= warm.end for compiled in warm_rank.compiles)
    assert len(warm_rank.compiles) == len(cold_rank.compiles)


@pytest.mark.slow
def test_ranks_run_a_warm_step_together_or_not_at_all():
    done = subprocess.run([sys.executable, *torchrun(2, PROGRAMS / "ready.py")], env=clean_environment(), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    lines = sorted(line for line in done.stdout.splitlines() if line.startswith("rank"))
    assert lines == [f"rank {rank}: False True True True [None, None]" for rank in (0, 1)]
    assert "another rank was not ready" in done.stderr


@pytest.mark.slow
def test_parallel_models_train_on_as_if_nothing_had_been():
    done = subprocess.run([sys.executable, *torchrun(2, PROGRAMS / "parallel.py")], env=clean_environment(), capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    lines = sorted(line for line in done.stdout.splitlines() if line.startswith("rank"))
    assert lines == [f'rank {rank}: {{"ddp": true, "fsdp": true}}' for rank in (0, 1)]


@pytest.mark.slow
def test_a_restart_compiles_with_what_the_attempt_before_recorded(tmp_path):
    done = ett("run", "--job", "job", "--runs", tmp_path / "runs", "--restarts", "1", "--", sys.executable, PROGRAMS / "learn.py", cwd=tmp_path)
    first, second = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    assert (first["source"], first["ran"]) == ("none", False)
    assert second == {"source": "schema", "ran": True, "notes": []}
    assert (tmp_path / "runs/job/learned/batch.json").exists()

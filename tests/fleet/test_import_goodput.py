"""Goodput records become a job whose report says the truth wherever the records hold it, and names the bound where they do not."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest
from goodput_jobs import ORIGIN_S, Recording, clean

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "account"))
from scenarios import FOLDER, found_in, names, scenario, truth_of

from ettrain.account.ledger import Ledger, account, number_of
from ettrain.cli import main
from ettrain.errors import ImportFormatError, UsageError
from ettrain.fleet.goodput import import_goodput
from ettrain.fleet.importing import Imported
from ettrain.jobreader import JobReader

S = 1_000_000_000
HERE = names() or [pytest.param("none", marks=pytest.mark.skip(reason="../shared/data/scenarios is not there"))]
BOUND_ONLY = {"06a_long_ckpt_no_orbax"}
"""The records say nothing of what took the time: the truth is a bound, in words."""
SAYS = {
    "06a_long_ckpt_no_orbax": ["at most 86.41%", "at least 69.69%", "Every 20 steps", "60 s"],
    "07_slow_steps": ["10 steps", "20 s longer", "at most 89.22%"],
    "08b_hang_self_heals": ["Step 50 took 1810 s", "95.08%"],
    "12_publish_tail": ["360 s", "untracked"],
    "13_lost_record": ["1 step(s) are missing"],
    "18_two_writers": ["Two processes", "0.001 s"],
}


def read(made: Imported) -> Ledger:
    return account(JobReader(made.paths).read()).ledger


def imported(job: Recording, tmp_path: Path, *, now: float | None = None, upto: float | None = None) -> tuple[Ledger, Imported]:
    path = job.write(tmp_path, upto=upto)
    made = import_goodput(path, tmp_path / "runs", now_ns=None if now is None else round((ORIGIN_S + now) * S), force=True)
    return read(made), made


def pct(truth) -> float:
    return 100 * truth["productive"] / sum(truth.values())


@pytest.mark.parametrize("name", HERE)
def test_a_scenario_s_records_give_its_truth(name, tmp_path):
    data = scenario(name)
    made = import_goodput(FOLDER / f"{name}.records.jsonl", tmp_path, now_ns=round((ORIGIN_S + data["query_time"]) * S))
    ledger = read(made)
    assert ledger.wall_ns == sum(truth_of(data).values())
    assert number_of(ledger, "failure") == data["failures_truth"]
    text = " ".join(made.notes)
    assert all(words in text for words in SAYS.get(name, []))
    if name in BOUND_ONLY:
        assert f"{pct(truth_of(data)):.2f}%" in text
    else:
        assert ledger.ett_pct == pytest.approx(pct(truth_of(data)), abs=0.1)


EXACT = ["01_clean", "02_one_failure_rollback", "03_two_failures_same_ckpt", "05_crash_before_first_ckpt", "06b_long_ckpt_orbax", "07_slow_steps",
         "08b_hang_self_heals", "09_preempt_resume_next_step", "11_data_stall", "13_lost_record", "15_custom_eval", "18_two_writers",
         "20_inprocess_rollback"]  # fmt: skip


@pytest.mark.parametrize("name", [name for name in HERE if name in EXACT])
def test_every_category_is_the_truth_s_where_the_records_hold_it(name, tmp_path):
    data = scenario(name)
    made = import_goodput(FOLDER / f"{name}.records.jsonl", tmp_path, now_ns=round((ORIGIN_S + data["query_time"]) * S))
    assert found_in(read(made)) == truth_of(data)


# ---- the same kinds, and those that no file is here for, with parameters of their own


def parameters(seed: int) -> Recording:
    chance = random.Random(seed)
    if seed == 0:
        return Recording()
    return Recording(
        step_s=chance.choice((0.25, 1.5, 7, 90)), init_s=chance.randint(1, 100), prep_s=chance.randint(1, 100), restore_s=chance.randint(1, 60),
        batch_s=chance.randint(1, 30), compile_s=chance.randint(1, 500), save_s=chance.choice((0.5, 3, 25)), every=chance.choice((5, 20, 25)),
    )  # fmt: skip


SEEDS = pytest.mark.parametrize("seed", range(4))


@SEEDS
def test_04_a_restart_that_dies_while_it_starts(seed, tmp_path):
    job = parameters(seed)
    job.start()
    for number in range(55):
        job.step(number)
    job.crash(55, job.step_s / 2, 120)
    saved = 55 // job.every * job.every
    job.start(saved - 1, dies_after="training_prep", dies_s=job.prep_s / 2)
    job.pass_time(120, "scheduling")
    job.start(saved - 1)
    ledger, _ = imported(clean(job, first=saved), tmp_path)
    assert number_of(ledger, "failure") == job.failures == 2
    assert ledger.ett_pct == pytest.approx(pct(job.truth()), abs=0.001)
    assert len(ledger.attempts) == 3


@SEEDS
def test_09_a_preemption_that_loses_no_step(seed, tmp_path):
    job = parameters(seed)
    job.start()
    for number in range(50):
        job.step(number, save=number == 49)
    job.pass_time(600, "scheduling")
    job.start(49)
    ledger, _ = imported(clean(job, first=50), tmp_path)
    assert found_in(ledger) == job.truth()
    assert number_of(ledger, "failure") == 1
    assert ledger.unsaved_ns == 0


def test_a_preemption_that_orbax_names_is_one(tmp_path):
    job = Recording()
    job.start()
    for number in range(50):
        job.step(number)
    job.save(49, 5, reached_preemption=True)
    job.pass_time(600, "scheduling")
    job.start(49)
    ledger, _ = imported(clean(job, first=50), tmp_path)
    assert [incident.diagnosis.cls for incident in ledger.incidents] == ["preemption"]
    assert number_of(ledger, "failure") == 0


@SEEDS
def test_10_a_failed_run_that_says_job_end(seed, tmp_path):
    job = parameters(seed)
    job.start()
    for number in range(55):
        job.step(number)
    job.crash(55, job.step_s / 2, 120, says_end=True)
    saved = 55 // job.every * job.every
    job.start(saved - 1)
    for number in range(saved, 100):
        job.step(number)
    ledger, _ = imported(job, tmp_path, now=job.t)
    assert found_in(ledger) == job.truth()
    assert ledger.status == "running"
    assert number_of(ledger, "failure") == 1
    job.end()
    again, _ = imported(job, tmp_path)
    assert again.status == "finished"
    assert found_in(again) == job.truth()


@SEEDS
def test_10_at_any_instant_what_was_lost_by_then_is_lost(seed, tmp_path):
    job = parameters(seed)
    job.start()
    for number in range(55):
        job.step(number)
    job.crash(55, job.step_s / 2, 120, says_end=True)
    restarted = job.t
    saved = 55 // job.every * job.every
    job.start(saved - 1)
    for number in range(saved, 100):
        job.step(number)
    for share in (0.1, 0.5, 0.9, 1):
        now = restarted + share * (job.t - restarted)
        ledger, _ = imported(job, tmp_path, now=now, upto=now)
        assert ledger.effective_ns == pytest.approx(job.truth(now)["productive"], abs=2 * (job.step_s + job.save_s) * S + job.compile_s * S)
        assert ledger.status == "running"


@SEEDS
def test_14_a_crash_loop_of_one_step_each(seed, tmp_path):
    job = parameters(seed)
    job.start()
    for number in range(5):
        job.step(number, save=True)
        job.crash(number + 1, job.step_s / 2, 60)
        job.start(number)
    ledger, _ = imported(clean(job, first=5), tmp_path)
    assert found_in(ledger) == job.truth()
    assert number_of(ledger, "failure") == 5


@SEEDS
def test_14_a_crash_loop_that_never_gets_past_its_first_step(seed, tmp_path):
    job = parameters(seed)
    for _ in range(4):
        job.start()
        job.crash(0, 0, 60)
    job.start()
    ledger, _ = imported(clean(job), tmp_path)
    assert number_of(ledger, "failure") == 4
    assert ledger.ett_pct == pytest.approx(pct(job.truth()), abs=0.001)


@SEEDS
def test_16_an_elastic_wait_and_re_initialisation_in_the_process(seed, tmp_path):
    job = parameters(seed)
    job.start()
    for number in range(50):
        job.step(number)
    job.failures += 1
    job.say("elastic_wait_start_time", elastic_wait_event_type="slice_down")
    job.pass_time(300, "scheduling")
    job.say("elastic_wait_end_time", elastic_wait_event_type="slice_down")
    job.say("elastic_reinit_start_time")
    job.pass_time(60, "process_group_init")
    job.say("elastic_reinit_end_time")
    job.say("elastic_slice_counts_timestamp", active_slices=3, total_slices=4, available_slices=3)
    ledger, _ = imported(clean(job, first=50), tmp_path)
    assert found_in(ledger) == job.truth()
    assert number_of(ledger, "failure") == 1
    assert ledger.incidents[0].time_to_recover_ns == 360 * S


def test_an_elastic_wait_that_has_not_ended_is_lost_time(tmp_path):
    job = Recording()
    job.start()
    for number in range(50):
        job.step(number)
    job.say("elastic_wait_start_time", elastic_wait_event_type="slice_down")
    job.pass_time(1000, "scheduling")
    ledger, _ = imported(job, tmp_path, now=job.t)
    assert ledger.status == "running"
    assert ledger.wall_ns == round(job.t * S)
    assert sum(leaf.wall_ns for leaf in ledger.leaves if leaf.path == "failure/reschedule") == 1000 * S


@SEEDS
def test_17_a_job_that_hangs_now(seed, tmp_path):
    job = parameters(seed)
    job.start()
    for number in range(50):
        job.step(number)
    job.begin_step(50)
    job.pass_time(3600, "hang")
    ledger, _ = imported(job, tmp_path, now=job.t)
    assert found_in(ledger) == job.truth()
    assert ledger.status == "running"


@SEEDS
def test_19_a_first_start_that_fails(seed, tmp_path):
    job = parameters(seed)
    job.start(dies_after="tpu_init", dies_s=job.init_s / 2)
    job.pass_time(300, "scheduling")
    job.start()
    ledger, _ = imported(clean(job), tmp_path)
    assert ledger.ett_pct == pytest.approx(pct(job.truth()), abs=0.001)
    assert number_of(ledger, "failure") == 1
    assert ledger.unsaved_ns == 0


@SEEDS
@pytest.mark.parametrize("recorded", [True, False])
def test_20_a_roll_back_in_the_process(seed, recorded, tmp_path):
    job = parameters(seed)
    job.every = 20
    job.start()
    for number in range(60):
        job.step(number)
    if recorded:
        job.restore(39, 30)
    else:
        job.lose(40)
    ledger, _ = imported(clean(job, first=40), tmp_path)
    assert found_in(ledger) == job.truth()
    assert ledger.incidents == ()
    assert ledger.attempts[0].last_step == 99


@SEEDS
def test_21_a_second_roll_back_deeper_than_the_first(seed, tmp_path):
    job = parameters(seed)
    job.every = 20
    job.start()
    for number in range(55):
        job.step(number)
    job.crash(55, job.step_s / 2, 120)
    job.start(39)
    for number in range(40, 50):
        job.step(number)
    job.crash(50, job.step_s / 2, 120)
    job.start(19)
    ledger, _ = imported(clean(job, first=20), tmp_path)
    assert found_in(ledger) == job.truth()
    assert number_of(ledger, "failure") == 2
    assert sum(incident.unsaved_ns for incident in ledger.incidents) == ledger.unsaved_ns


@SEEDS
def test_22_the_end_was_lost_and_an_hour_has_passed(seed, tmp_path):
    job = parameters(seed)
    job.start()
    for number in range(100):
        job.step(number)
    ledger, made = imported(job, tmp_path, now=job.t + 3600)
    assert ledger.ett_pct == pytest.approx(pct(job.truth()), abs=0.1)
    assert "job_end_time is missing" in " ".join(made.notes)
    assert ledger.status == "finished"
    assert ledger.time_to_shut_down_ns == pytest.approx(job.save_s * S, abs=1000)


def test_two_writers_whose_clocks_are_steps_apart(tmp_path):
    job = Recording()
    job.start()
    clean(job)
    for behind in (0.001, 3, 25, 47):
        both = Recording(name=f"both-{behind}")
        both.records = sorted(job.records + [(t + behind, _later(record, behind)) for t, record in job.records], key=lambda pair: pair[0])
        both.tiles = job.tiles
        ledger, made = imported(both, tmp_path)
        assert ledger.ett_pct == pytest.approx(pct(job.truth()), abs=0.1), behind
        assert "Two processes" in " ".join(made.notes)


def _later(record, by):
    return {key: value + by if key.endswith("_time") else value for key, value in record.items()}


def test_records_that_were_delivered_twice_count_once(tmp_path):
    job = Recording()
    job.start()
    clean(job)
    twice = Recording(name="twice", records=[pair for pair in job.records for _ in range(2)])
    ledger, made = imported(twice, tmp_path)
    assert found_in(ledger) == job.truth()
    assert f"{len(job.records)} records were there twice" in " ".join(made.notes)


def test_a_crash_that_lost_its_last_records_loses_no_work(tmp_path):
    job = Recording()
    job.start()
    for number in range(60):
        job.step(number)
    lost = len([1 for t, _ in job.records if t > job.t - 35])
    job.records = job.records[:-lost]
    job.failures += 1
    job.pass_time(120, "scheduling")
    job.start(59)
    ledger, _ = imported(clean(job, first=60), tmp_path)
    assert ledger.unsaved_ns <= 10 * S
    assert number_of(ledger, "failure") == 1


# ---- what is said, and what is refused


def test_the_command_says_what_it_made_and_what_comes_next(tmp_path, capsys):
    job = Recording(name="my job/1")
    job.start()
    path = clean(job, 10).write(tmp_path) if False else None
    job.name = "my-job"
    path = clean(job, 30).write(tmp_path)
    assert main(["import", "goodput", str(path), "--runs", str(tmp_path / "runs")]) == 0
    out = capsys.readouterr().out
    assert out.startswith("imported my-job: ")
    assert out.rstrip().endswith(f"next: ett report my-job --runs {tmp_path / 'runs'}")
    assert main(["report", "my-job", "--runs", str(tmp_path / "runs"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ett_pct"] == pytest.approx(pct(job.truth()), abs=0.1)
    assert report["devices"] is None
    assert report["queue_s"] is None
    assert "checkpoint_blocking" in report["supports"]
    assert main(["import", "goodput", str(path), "--runs", str(tmp_path / "runs"), "--json", "--force", "--job", "other"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["job"], told["attempts"], told["steps"]) == ("other", 1, 30)


def test_a_job_that_is_there_is_not_overwritten(tmp_path):
    job = Recording()
    job.start()
    path = clean(job, 30).write(tmp_path)
    import_goodput(path, tmp_path / "runs")
    before = sorted((tmp_path / "runs").rglob("*"))
    with pytest.raises(UsageError, match="--force"):
        import_goodput(path, tmp_path / "runs")
    assert sorted((tmp_path / "runs").rglob("*")) == before
    import_goodput(path, tmp_path / "runs", force=True)
    assert [p.name for p in (tmp_path / "runs").iterdir()] == ["job"]


def test_a_folder_that_is_no_job_is_never_overwritten(tmp_path):
    job = Recording()
    job.start()
    path = clean(job, 30).write(tmp_path)
    precious = tmp_path / "runs/job/thesis.txt"
    precious.parent.mkdir(parents=True)
    precious.write_text("years of work")
    with pytest.raises(UsageError, match="no job's folder"):
        import_goodput(path, tmp_path / "runs", force=True)
    assert precious.read_text() == "years of work"


GOOD = '{"job_name": "a", "job_start_time": 1767225600}\n'
BAD = {
    "empty": ("", None, "holds no record"),
    "prose": ("once upon a time\n", 1, "not JSON"),
    "number": (GOOD + "5\n", 2, "no JSON object"),
    "unknown": ('{"a": 1}\n{"b": 2}\n', None, "holds no record"),
    "binary": ("\x7fELF\x00\x01\x02\n", 1, "not JSON"),
    "no time": (GOOD + '{"job_end_time": "soon"}\n', 2, "time in seconds"),
    "infinite": (GOOD + '{"job_end_time": Infinity}\n', 2, "time in seconds"),
    "negative": (GOOD + '{"job_end_time": -1}\n', 2, "time in seconds"),
    "far": (GOOD + '{"job_end_time": 1e300}\n', 2, "time in seconds"),
    "list": (GOOD + '{"job_end_time": [1]}\n', 2, "time in seconds"),
    "step": (GOOD + '{"step_start_time": 1767225601, "step_count": "x"}\n', 2, "step number"),
    "half a step": (GOOD + '{"step_start_time": 1767225601, "step_count": 1.5}\n', 2, "step number"),
    "no step": (GOOD + '{"step_start_time": 1767225601}\n', 2, "step number"),
    "huge": (GOOD + '{"x": "' + "y" * 2_000_000 + '"}\n', 2, "longer than"),
    "deep": (GOOD + "[" * 100_000 + "\n", 2, "not JSON"),
    "several": (GOOD + '{"job_name": "b", "job_start_time": 1767225600}\n', None, "several jobs"),
}


@pytest.mark.parametrize("name", list(BAD))
def test_what_is_no_such_log_is_refused_with_its_line_and_leaves_nothing(name, tmp_path, capsys):
    text, line, words = BAD[name]
    path = tmp_path / "log"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ImportFormatError, match=words) as refused:
        import_goodput(path, tmp_path / "runs")
    assert refused.value.line == line
    assert not (tmp_path / "runs").exists()
    assert main(["import", "goodput", str(path), "--runs", str(tmp_path / "runs")]) == 5
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("path", ["nowhere", "."])
def test_a_log_that_cannot_be_read_is_refused(path, tmp_path):
    with pytest.raises(ImportFormatError, match="cannot be read"):
        import_goodput(tmp_path / path, tmp_path / "runs")


def test_one_of_several_jobs_is_chosen_by_name(tmp_path):
    path = tmp_path / "log"
    path.write_text(GOOD + '{"job_name": "b", "job_start_time": 1767225700}\n{"job_name": "b", "job_end_time": 1767225800}\n')
    made = import_goodput(path, tmp_path / "runs", job="b")
    assert read(made).wall_ns == 100 * S


@pytest.mark.parametrize("now", ["soon", "-5", "nan", "1e30"])
def test_an_instant_that_is_none_is_a_usage_error(now, tmp_path, capsys):
    path = tmp_path / "log"
    path.write_text(GOOD)
    assert main(["import", "goodput", str(path), "--runs", str(tmp_path / "runs"), f"--now={now}"]) == 2
    assert "--now" in capsys.readouterr().err


def test_an_iso_time_is_an_instant(tmp_path):
    path = tmp_path / "log"
    path.write_text(GOOD)
    assert main(["import", "goodput", str(path), "--runs", str(tmp_path / "runs"), "--now", "2026-01-01T00:01:00Z"]) == 0
    made = JobReader(__import__("ettrain.jobpaths").jobpaths.JobPaths(tmp_path / "runs/a")).read()
    assert account(made).ledger.wall_ns == 60 * S


def test_the_last_line_may_be_cut_off(tmp_path):
    path = tmp_path / "log"
    path.write_text(GOOD + '{"job_name": "a", "job_end_ti')
    made = import_goodput(path, tmp_path / "runs")
    assert "cut off" in " ".join(made.notes)


def test_cloud_logging_s_envelope_is_opened(tmp_path):
    job = Recording()
    job.start()
    path = clean(job, 30).write(tmp_path)
    path.write_text("".join(json.dumps({"jsonPayload": json.loads(line), "severity": "INFO"}) + "\n" for line in path.read_text().splitlines()))
    assert found_in(read(import_goodput(path, tmp_path / "runs"))) == job.truth()

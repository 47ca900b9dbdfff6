"""The recorder by itself, on a clock that is set by hand: stages, waits, stalls, sources, what the beat page holds."""

import pytest
from launching import Job

from ettrain import events as e
from ettrain.record import recorder as recorder_module
from ettrain.record import stages
from ettrain.record.output import MAX_WAITING
from ettrain.record.recorder import Recorder
from ettrain.record.stages import import_part

MS, S = 1_000_000, 1_000_000_000


class Clock:
    def __init__(self):
        self.t = 1000 * S

    def __call__(self):
        self.t += 1
        return self.t

    def pass_(self, ns):
        self.t += ns


@pytest.fixture
def tick(monkeypatch):
    clock = Clock()
    for module in (recorder_module, stages):
        monkeypatch.setattr(module, "now", clock)
    return clock


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.setenv("ETT_JOB_DIR", str(tmp_path / "job"))
    for name in ("RANK", "SLURM_PROCID", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    return Job(tmp_path / "job")


@pytest.fixture
def recorder(job, tick):
    return Recorder()


def step(recorder, tick, ns=10 * MS):
    tick.pass_(ns)
    recorder.program_step(None)


def slow_steps(job):
    return [(r["end"] - r["t"]) // MS for r in job.records(kind="slow")]


def test_outside_a_job_nothing_is_ever_written(tmp_path, monkeypatch):
    monkeypatch.delenv("ETT_JOB_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    recorder = Recorder()
    recorder.promote()
    recorder.close_stage("publish", recorder.open_stage("publish"))
    recorder.program_step(1)
    recorder.finish()
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_never_trains_leaves_no_file(job, recorder):
    recorder.close_stage("checkpoint_load", recorder.open_stage("checkpoint_load"))
    recorder.finish()
    assert not job.root.exists()


def test_what_waited_is_written_behind_the_head(job, recorder):
    recorder.mark("first_forward", 5)
    recorder.close_stage("my stage", recorder.open_stage("my stage", user=True), user=True)
    recorder.promote(3, 8)
    assert [r["k"] for r in job.records()] == ["head", "mark", "name", "span"]
    assert (job.records()[0]["rank"], job.records()[0]["world"]) == (3, 8)
    assert list(job.journals()) == ["rank-00003"]


def test_only_so_much_waits(job, recorder, capsys):
    for number in range(MAX_WAITING + 7):
        recorder.mark("x", number)
    recorder.promote()
    assert len(job.records(kind="mark")) == MAX_WAITING
    assert "7 records lost" in capsys.readouterr().err
    assert job.records(kind="fault")[0]["count"] == 1


def test_open_stages_stand_on_the_page_innermost_last(job, recorder, tick):
    recorder.promote()
    outer = recorder.open_stage("epoch", user=True)
    inner = recorder.open_stage("checkpoint_save")
    assert job.beat().stack == ((e.FIRST_USER_CODE, outer), (e.FOUND_NAMES.index("checkpoint_save"), inner))
    recorder.close_stage("checkpoint_save", inner)
    assert job.beat().stack == ((e.FIRST_USER_CODE, outer),)
    recorder.close_stage("epoch", outer, user=True)
    assert job.beat().stack == ()


def test_stages_closed_out_of_order_leave_a_clean_page(job, recorder):
    recorder.promote()
    first, second = recorder.open_stage("a", user=True), recorder.open_stage("b", user=True)
    recorder.close_stage("a", first, user=True)
    recorder.close_stage("b", second, user=True)
    assert job.beat().stack == ()
    assert [r["name"] for r in job.records(kind="span")] == ["a", "b"]
    assert not any("lane" in r for r in job.records(kind="span"))


def test_stages_deeper_than_the_page_are_counted_and_closed(job, recorder):
    recorder.promote()
    begins = [recorder.open_stage("deep", user=True) for _ in range(e.MAX_DEPTH + 5)]
    assert len(job.beat().stack) == e.MAX_DEPTH
    for begin in reversed(begins):
        recorder.close_stage("deep", begin, user=True)
    assert job.beat().stack == ()
    assert len(job.records(kind="span")) == e.MAX_DEPTH + 5


def test_a_child_forked_inside_a_stage_does_not_write_it(job, recorder):
    begin = recorder.open_stage("epoch", user=True)
    recorder.in_child()
    recorder.promote()
    recorder.close_stage("epoch", begin, user=True)
    assert job.records(kind="span") == []


def test_a_stage_on_another_thread_has_a_lane_and_no_place_on_the_page(job, recorder):
    import threading

    recorder.promote()

    def background():
        begin = recorder.open_stage("checkpoint_save")
        assert job.beat().stack == ()
        recorder.close_stage("checkpoint_save", begin)

    thread = threading.Thread(target=background)
    thread.start()
    thread.join()
    assert job.records(kind="span")[0]["lane"] > 0
    assert recorder.lost_ns == 0


def test_a_stage_that_turned_out_to_be_none_leaves_nothing(job, recorder):
    recorder.promote()
    recorder.drop_stage(recorder.open_stage("device_init"))
    assert job.beat().stack == ()
    assert job.records(kind="span") == []


def test_a_step_far_longer_than_usual_is_slow(job, recorder, tick):
    for _ in range(40):
        step(recorder, tick)
    step(recorder, tick, 5 * S)
    step(recorder, tick)
    assert slow_steps(job) == [5000]
    assert 9 * MS <= job.records(kind="slow")[0]["typical"] <= 11 * MS


@pytest.mark.parametrize("framed", [False, True])
def test_a_long_stage_between_steps_makes_no_step_slow(job, recorder, tick, framed):
    frame = recorder.open_stage("epoch", user=True) if framed else 0
    for _ in range(40):
        step(recorder, tick)
    begin = recorder.open_stage("checkpoint_save")
    inner = recorder.open_stage("publish", user=True)
    tick.pass_(20 * S)
    recorder.close_stage("publish", inner, user=True)
    recorder.close_stage("checkpoint_save", begin)
    step(recorder, tick)
    recorder.waited(tick() - 7 * S, tick())
    tick.pass_(0)
    step(recorder, tick)
    if framed:
        recorder.close_stage("epoch", frame, user=True, steps=42)
    assert slow_steps(job) == []


def test_spans_within_a_span_take_its_time_once(recorder, tick):
    begin, lost = tick(), recorder.lost_ns
    tick.pass_(4 * S)
    recorder.span("evaluation", begin, begin + 3 * S)
    recorder.span("evaluation", begin, begin + 4 * S, lost_then=lost)
    assert recorder.lost_ns == 4 * S


def test_waits_are_sums_when_short_and_spans_when_long(job, recorder, tick):
    recorder.promote()
    recorder.waited(tick(), tick() + 200 * MS)
    recorder.waited(tick(), tick() + 300 * MS)
    assert 200 * MS <= recorder.wait_ns < 201 * MS
    assert len(job.records(kind="span", name="data_wait")) == 1
    tick.pass_(10_000 * S)
    recorder.waited(tick.t - 3 * S, tick.t)
    assert len(job.records(kind="span", name="data_wait")) == 1, "long is what is long for a job of that age"


def test_the_first_step_is_marked_once(job, recorder):
    recorder.program_step(None)
    recorder.finish()
    assert len(job.records(kind="mark", name="first_step")) == 1


def test_a_better_source_of_the_count_replaces_the_one_before(job, recorder):
    recorder.backward_done()
    recorder.backward_done()
    assert (recorder.steps, recorder.source) == (2, "backward")
    recorder.rule.activity = 2
    recorder.optimizer_done(1)
    assert (recorder.steps, recorder.source) == (1, "optimizer")
    recorder.backward_done()
    assert recorder.steps == 1
    recorder.program_step(7)
    recorder.optimizer_done(1)
    assert (recorder.steps, recorder.source) == (1, "program")
    assert len(job.records(kind="recount")) == 2
    assert [r["source"] for r in job.records(kind="mark", name="step_source")] == ["backward", "optimizer", "program"]
    assert job.beat().step == 1
    assert job.beat().said == 8


def test_a_programs_number_is_noted_once_until_it_jumps(job, recorder):
    for number in (40, 41, 42, 10, 11):
        recorder.program_step(number)
    assert [(r["local"], r["step"]) for r in job.records(kind="said")] == [(0, 40), (3, 10)]


def test_a_frameworks_number_names_the_step_just_counted(job, recorder):
    for number in (101, 102, 103):
        recorder.rule.activity += 1
        recorder.optimizer_done(1)
        recorder.framework_step(number)
    assert [(r["local"], r["step"]) for r in job.records(kind="said")] == [(1, 101)]


def test_progress_is_written_at_powers_of_two_and_then_ever_more_rarely(job, recorder, tick):
    for _ in range(20_000):
        step(recorder, tick, 50 * MS)
    steps = [r["step"] for r in job.records(kind="prog")]
    assert steps[:5] == [1, 2, 4, 8, 16]
    assert {1 << n for n in range(15)} <= set(steps)
    assert len(steps) < 1000
    assert (20_000 - steps[-1]) * 50 * MS <= max(S, tick.t >> 7)


def test_the_exit_is_written_although_something_before_it_fails(job, recorder, capsys):
    recorder.program_step(None)
    recorder.at_finish.append(lambda: 1 / 0)
    called = []
    recorder.at_finish.append(lambda: called.append(1))
    recorder.finish()
    recorder.finish()
    assert called == [1]
    assert [r["k"] for r in job.records()][-1] == "exit"
    assert len(job.records(kind="exit")) == 1


def test_the_second_process_of_a_rank_gets_a_file_of_its_own(job, recorder, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    recorder.promote()
    others = [Recorder(), Recorder()]
    for other in others:
        other.promote()
    names = list(job.journals())
    assert len(names) == 3
    assert "rank-00000" in names
    assert sum(name.startswith("rank-00000-p") for name in names) == 2
    assert len(list(job.paths.attempt("000").glob("*.beat"))) == 3


@pytest.mark.parametrize(("value", "folder"), [("2", "003-r2"), ("nonsense", "003"), ("", "003")])
def test_torchruns_restarts_have_folders_of_their_own(job, recorder, monkeypatch, value, folder):
    monkeypatch.setenv("ETT_ATTEMPT", "3")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", value)
    recorder.promote()
    assert job.paths.attempt_names() == [folder]


def test_imports_are_named_by_package_and_torchs_parts_apart():
    assert [import_part(n) for n in ("numpy", "numpy.linalg", "torch", "torch._dynamo.config")] == ["numpy", "numpy", "torch", "torch._dynamo"]

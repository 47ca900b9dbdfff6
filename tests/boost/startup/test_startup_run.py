"""Running `ett.Startup`: overlap, results, exceptions, random numbers, what is left behind."""

import random
import signal
import subprocess
import sys
import threading
import time
import traceback

import pytest
import torch
from startupjobs import PROGRAMS, clean_environment

import ettrain as ett
from ettrain.clock import process_start_ns


def took(call):
    begin = time.monotonic()
    result = call()
    return result, time.monotonic() - begin


def waiting(start, name, seconds, needs="", **how):
    space = {"time": time}
    exec(f"def {name}({needs}):\n    time.sleep({seconds})\n    return {name!r}", space)
    start.stage(**how)(space[name])


def test_independent_stages_overlap_and_the_run_is_as_long_as_its_critical_path():
    threads = threading.active_count()
    start = ett.Startup()
    waiting(start, "loader", 0.6)
    waiting(start, "group", 0.3, collective=True)
    waiting(start, "model", 0.4)
    waiting(start, "table", 0.5, "model")
    waiting(start, "ddp", 0.3, "model, group", collective=True)
    ready, seconds = took(start.run)
    assert vars(ready) == {name: name for name in ("loader", "group", "model", "table", "ddp")}
    assert seconds < 1.5  # of 2.1 one after another; how near to the critical path is asserted on recorded times
    assert threading.active_count() == threads


def test_without_overlap_the_stages_follow_one_another_on_the_main_thread_with_the_same_results(monkeypatch):
    start, seen = ett.Startup(), []

    @start.stage
    def a():
        seen.append(("a", threading.current_thread()))
        return 1

    @start.stage
    def b(a):
        seen.append(("b", threading.current_thread()))
        return a + 1

    overlapped = start.run()
    assert threading.main_thread() not in {thread for _, thread in seen}
    seen.clear()
    monkeypatch.setenv("ETT_STARTUP_SEQUENTIAL", "1")
    assert start.run() == overlapped
    assert seen == [("a", threading.main_thread()), ("b", threading.main_thread())]


def test_collectives_run_one_at_a_time_in_declared_order_however_soon_they_are_ready():
    start, order = ett.Startup(), []

    @start.stage
    def slow():
        time.sleep(0.3)

    @start.stage(collective=True)
    def first(slow):
        order.append("first")
        time.sleep(0.1)
        order.append("first done")

    @start.stage(collective=True)
    def second():
        order.append("second")

    start.run()
    assert order == ["first", "first done", "second"]


def test_an_exception_surfaces_as_itself_at_once_and_nothing_new_begins():
    start, began = ett.Startup(), []
    error = ValueError("no such table")
    released = threading.Event()

    @start.stage
    def sleeper():
        released.wait(20)

    @start.stage
    def table():
        time.sleep(0.1)
        raise error

    @start.stage
    def model(table):
        began.append("model")

    @start.stage(main=True)
    def later(sleeper):
        began.append("later")

    begin = time.monotonic()
    with pytest.raises(ValueError, match="no such table") as caught:
        start.run()
    assert time.monotonic() - begin < 5
    assert caught.value is error
    assert traceback.extract_tb(error.__traceback__)[-1].name == "table"
    assert any("'table'" in note for note in error.__notes__)
    released.set()
    time.sleep(0.2)
    assert began == []


def test_an_exception_ends_a_stage_in_another_process(tmp_path):
    import helperstages

    start = ett.Startup()
    start.stage(process=True)(helperstages.forever)

    @start.stage
    def wrong():
        time.sleep(1.0)
        raise RuntimeError("wrong")

    with pytest.raises(RuntimeError, match="wrong"):
        start.run()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and helperstages.children():
        time.sleep(0.05)
    assert helperstages.children() == []


def test_a_stage_elsewhere_raises_here_with_its_traceback_there():
    import helperstages

    start = ett.Startup()
    start.stage(process=True)(helperstages.fails)
    with pytest.raises(helperstages.OwnError, match="seven") as caught:
        start.run()
    assert "helperstages.py" in str(caught.value.__cause__)


def test_a_stage_elsewhere_that_dies_is_named_with_the_signal():
    import helperstages

    start = ett.Startup()
    start.stage(process=True)(helperstages.dies)
    with pytest.raises(ChildProcessError, match="'dies'.*signal 9"):
        start.run()


def test_a_result_that_cannot_be_sent_is_an_error_that_names_the_stage():
    import helperstages

    start = ett.Startup()
    start.stage(process=True)(helperstages.unsendable)
    with pytest.raises(Exception, match="(?i)pickle") as caught:
        start.run()
    assert any("'unsendable'" in note for note in caught.value.__notes__)


def test_a_signal_handlers_exception_ends_the_wait():
    start = ett.Startup()
    released = threading.Event()

    @start.stage
    def sleeper():
        released.wait(20)

    class Stop(Exception):
        pass

    def handler(number, frame):
        raise Stop

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(Stop):
            start.run()
    finally:
        signal.signal(signal.SIGALRM, before)
        released.set()


def test_what_must_be_on_the_main_thread_is_there():
    start = ett.Startup()

    @start.stage
    def first():
        return threading.current_thread() is threading.main_thread()

    @start.stage(main=True)
    def second(first):
        return threading.current_thread() is threading.main_thread()

    ready = start.run()
    assert (ready.first, ready.second) == (False, True)


def test_stages_see_the_grad_mode_and_context_of_the_caller():
    import contextvars

    variable = contextvars.ContextVar("variable", default="not handed on")
    variable.set("handed on")
    start = ett.Startup()

    @start.stage
    def seen():
        return torch.is_grad_enabled(), variable.get()

    with torch.no_grad():
        assert start.run().seen == (False, "handed on")


def drawing():
    start = ett.Startup()

    @start.stage(rng=True)
    def model():
        time.sleep(0.05)
        return torch.rand(3).tolist(), random.random()

    @start.stage
    def waits():
        time.sleep(0.1)

    @start.stage(rng=True)
    def head():
        return torch.rand(3).tolist(), random.random()

    return start


def test_stages_that_draw_get_the_same_numbers_as_without_overlap_and_so_does_what_follows(capsys):
    results = []
    for sequential in (True, False, False):
        torch.manual_seed(3)
        random.seed(3)
        ready = drawing().run(sequential=sequential)
        results.append((ready.model, ready.head, torch.rand(2).tolist(), random.random()))
    torch.manual_seed(3)
    random.seed(3)
    plain = [(torch.rand(3).tolist(), random.random()) for _ in range(2)]
    assert results[0] == results[1] == results[2] == (*plain, torch.rand(2).tolist(), random.random())
    assert capsys.readouterr().err == ""


def test_a_stage_that_draws_without_saying_so_is_named(capsys):
    start = drawing()

    @start.stage
    def noise(head):
        torch.rand(1)

    start.run(sequential=True)
    told = capsys.readouterr().err
    assert "'noise'" in told and "rng=True" in told and "'model'" not in told


def test_a_stage_elsewhere_ends_when_its_parent_is_killed():
    done = subprocess.run(
        [sys.executable, PROGRAMS / "orphan.py"], env=clean_environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL
    pid = int(done.stdout)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and process_start_ns(pid) is not None:
        time.sleep(0.05)
    assert process_start_ns(pid) is None

"""How a process ends, and what its journal must say of it."""

import signal
import subprocess
import sys
import time

import pytest
from launching import PROGRAMS


def end(job, mode, code):
    done = job.run(PROGRAMS / "exits.py", mode, code=code)
    assert "ettrain:" not in done.stderr
    return done, [(r["k"], r.get("type", "")) for r in job.records() if r["k"] in ("exc", "exit")]


@pytest.mark.parametrize(
    ("mode", "code", "said"),
    [
        ("end", 0, [("exit", "")]),
        ("exception", 1, [("exc", "ValueError"), ("exit", "")]),
        ("thread", 0, [("exc", "ZeroDivisionError"), ("exit", "")]),
        ("hook_replaced", 1, [("exc", "KeyError"), ("exit", "")]),
        ("hook_chained", 1, [("exc", "KeyError"), ("exit", "")]),
        ("sys_exit", 3, [("exit", "")]),
        ("sys_exit_text", 1, [("exit", "")]),
        ("os_exit", 4, []),
        ("interrupt", -signal.SIGINT, [("exc", "KeyboardInterrupt"), ("exit", "")]),
        ("terminate", -signal.SIGTERM, []),
        ("segv", -signal.SIGSEGV, []),
        ("abort", -signal.SIGABRT, []),
        ("own_handler", 143, [("exit", "")]),
    ],
)
def test_the_journal_says_how_it_ended_as_far_as_the_process_can_know(job, mode, code, said):
    _, found = end(job, mode, code)
    assert found == said
    assert job.beat().step == 3
    rank = job.history().attempts[0].ranks[0]
    assert rank.steps == 3
    assert rank.died == (code < 0 or code == 4 or mode in ("exception", "hook_replaced", "hook_chained"))


@pytest.mark.parametrize("mode", ["exception", "hook_replaced", "thread", "interrupt"])
def test_what_is_printed_is_printed_as_ever(job, mode):
    with_us, _ = end(job, mode, None)
    code = f"import sys, types; e = types.ModuleType('ettrain'); e.step = lambda n: None; sys.modules['ettrain'] = e; sys.argv[1:] = [{mode!r}]; "
    code += f"import runpy; runpy.run_path({str(PROGRAMS / 'exits.py')!r}, run_name='__main__')"
    bare = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert with_us.returncode == bare.returncode
    assert with_us.stderr.splitlines()[-1] == bare.stderr.splitlines()[-1]


def test_an_interrupt_before_anything_ends_as_ever(job):
    code = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
    assert job.run("-c", code, code=-signal.SIGINT).stderr.endswith("KeyboardInterrupt\n")
    job.run(PROGRAMS / "exits.py", "interrupt_early", code=-signal.SIGINT)


def test_an_exception_has_its_message_and_trace(job):
    end(job, "exception", 1)
    (record,) = job.records(kind="exc")
    assert record["message"] == "bad loss"
    assert record["trace"].splitlines()[-1].endswith("in main")


def test_an_exception_closes_the_stage_it_leaves(job):
    end(job, "exception_in_stage", 1)
    assert job.records(kind="span", name="publish")[0]["err"] == "ValueError"
    assert job.beat().stack == ()


def test_an_exception_is_there_although_other_exit_handlers_hang(job):
    process = subprocess.Popen([sys.executable, PROGRAMS / "exits.py", "atexit_hangs"], env=job.env(), stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            time.sleep(0.05)
            if job.journals() and job.records(kind="exc"):
                break
        assert job.records(kind="exc")[0]["message"] == "then hang"
    finally:
        process.kill()
        process.wait()


def test_the_end_is_the_programs_last_line_not_that_of_its_exit_handlers(job):
    end(job, "atexit_slow", 0)
    (record,) = job.records(kind="exit")
    assert record["t"] - job.beat().step_t < 900_000_000


def test_what_other_exit_handlers_do_is_still_recorded(job):
    end(job, "saves_at_exit", 0)
    kinds = [r.get("name", r["k"]) for r in job.records() if r["k"] in ("span", "exit")]
    assert sorted(kinds) == ["exit", "publish"]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_child_of_multiprocessing_says_how_it_ended(job, method):
    for attempt, (kind, code) in enumerate([("raises", 1), ("leaves", 5), ("ends", 0)]):
        job.run(PROGRAMS / "exits.py", f"child_{kind}_{method}", code=code, attempt=attempt)
        journals = job.journals(attempt).values()
        (child,) = [records for records in journals if records[-1].get("step") == 2]
        errors = [(r["type"], r["message"]) for r in child if r["k"] == "exc"]
        assert errors == ([("LookupError", "in a child")] if kind == "raises" else [])
        assert child[-1]["k"] == "exit"

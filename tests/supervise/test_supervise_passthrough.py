"""What goes through `ett run` untouched: exit code, output, input, descriptors, environment."""

from __future__ import annotations

import os
import subprocess

import pytest


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 3", 3), ("exit 255", 255), ("kill -9 $$", 137), ("kill -TERM $$", 143), ("kill -SEGV $$", 139)],
)
def test_the_exit_code(ett, script, code):
    assert ett.run("sh", "-c", script).returncode == code


def test_output_and_input_byte_for_byte(ett):
    data = bytes(range(256)) * 100
    done = ett.run("sh", "-c", "cat; printf 'an error\\n' >&2", text=False, input=data)
    assert done.stdout == data
    lines = done.stderr.splitlines(keepends=True)
    assert [line for line in lines if not line.startswith(b"ettrain: ")] == [b"an error\n"]


def test_quiet_says_nothing(ett, rank):
    done = ett.run(*rank, 3, ett=["--quiet"])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_descriptors_that_the_caller_hands_down(ett):
    read, write = os.pipe()
    ett.run("bash", "-c", f"echo hello >&{write}", pass_fds=[write])
    os.close(write)
    with os.fdopen(read) as file:
        assert file.read() == "hello\n"


def test_arguments_with_dashes_and_spaces(ett):
    done = ett.run("printf", "[%s]", "--job", "a b", "--", "-x")
    assert done.stdout == "[--job][a b][--][-x]"


@pytest.mark.parametrize("how", ["closed", "broken"])
def test_a_stderr_that_cannot_be_written(ett, rank, how):
    """Our own lines get lost; the command neither ends nor gets them on its stdout."""
    script = f"echo begin; {' '.join(rank)} 3 2>/dev/null; echo end"
    words = ett.words("sh", "-c", script + "; exit 9", ett=["--restarts", 1])
    if how == "closed":
        done = subprocess.run(["sh", "-c", 'exec "$@" 2>&-', "sh", *words], env=ett.env, stdout=subprocess.PIPE, text=True, timeout=60)
        out, code = done.stdout, done.returncode
    else:
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run(words, env=ett.env, stdout=subprocess.PIPE, stderr=write, text=True, timeout=60)
        os.close(write)
        out, code = done.stdout, done.returncode
    assert (code, out) == (9, "begin\nend\n" * 2)


def test_the_environment_gains_our_names_only(ett):
    done = ett.run("env", env=ett.env | {"PYTHONPATH": "/somewhere", "MINE": "1"})
    seen = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    more = {key for key in seen if key not in ett.env} - {"MINE", "PYTHONPATH", "_"}
    assert all(key.startswith("ETT_") for key in more), more
    assert seen["PYTHONPATH"].endswith(":/somewhere")
    assert seen["MINE"] == "1"

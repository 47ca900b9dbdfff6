"""The environment that `ett run` gives to a job's processes, with the package as pip would have installed it: byte-compiled.

A source tree under PYTHONDONTWRITEBYTECODE=1 has no byte code, and compiling it anew in every process costs more than all the rest.
"""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import ettrain
from ettrain.settings import ENV_ATTEMPT, ENV_HOME, ENV_JOB_DIR, ENV_SUPERVISOR

_NOT_HANDED_ON = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "RANK", "WORLD_SIZE")


SOURCE = Path(next(iter(ettrain.__path__)))
"""The package as it is here."""


def bare() -> dict[str, str]:
    """This process's environment without ettrain and without a PYTHONPATH."""
    return {name: value for name, value in os.environ.items() if name not in _NOT_HANDED_ON and not name.startswith("ETT_")}


def package_copy(folder: Path) -> Path:
    """A byte-compiled copy of the package below `folder`."""
    copy = folder / "ettrain"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    compileall.compile_dir(copy, quiet=2)
    return copy


def with_ettrain(package: Path, job: Path) -> dict[str, str]:
    """The environment of a process of `job` below `ett run`."""
    return {
        **bare(),
        "PYTHONPATH": str(package / "record" / "inject"),
        ENV_JOB_DIR: str(job),
        ENV_ATTEMPT: "0",
        ENV_SUPERVISOR: str(os.getpid()),
        ENV_HOME: str(package),
    }


def cpu_ms(words: Sequence[str], env: dict[str, str]) -> float:
    """CPU milliseconds (user and system) of a process from its creation to its end.

    Raises:
        CalledProcessError: it failed.
    """
    process = subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, list(words))
    return 1000 * (usage.ru_utime + usage.ru_stime)


def output(words: Sequence[str], env: dict[str, str]) -> str:
    """Standard output of this interpreter run with those words."""
    return subprocess.run([sys.executable, *words], env=env, check=True, stdout=subprocess.PIPE, text=True).stdout

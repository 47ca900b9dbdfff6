"""Runs a program as a job under `ett run`, each time with an empty Inductor cache, and says what it took and what its report says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ETT = str(Path(sys.executable).parent / "ett")


@dataclass(frozen=True, slots=True)
class Took:
    """One run."""

    wall_s: float
    cpu_s: float
    """User and system, of the program and all it started and waited for: the C++ compiler as well."""
    told: dict[str, Any]
    """The program's last line, where it is JSON."""


class Jobs:
    """A runs folder in a folder that the caller removes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        dropped = ("ETT_", "TORCHINDUCTOR_CACHE", "TORCH_COMPILE_DYNAMIC")
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        self.env |= {"OMP_NUM_THREADS": self.env.get("OMP_NUM_THREADS", "1")}

    def run(self, job: str, words: Sequence[str], *, ett: Sequence[str] = ()) -> Took:
        """Run to the end.

        Raises:
            RuntimeError: it failed.
        """
        cache = self.folder / f"inductor-{job}"
        command = [ETT, "run", "--quiet", "--runs", str(self.folder / "runs"), "--job", job, *ett, "--", *words]
        with (self.folder / "out").open("w+", encoding="utf-8") as out, (self.folder / "err").open("w+", encoding="utf-8") as err:
            begin = time.perf_counter()
            process = subprocess.Popen(command, env=self.env | {"TORCHINDUCTOR_CACHE_DIR": str(cache)}, stdout=out, stderr=err, cwd=self.folder)
            _, status, usage = os.wait4(process.pid, 0)
            wall_s = time.perf_counter() - begin
            process.returncode = os.waitstatus_to_exitcode(status)
            out.seek(0)
            err.seek(0)
            if process.returncode:
                raise RuntimeError(f"{words} ended with code {process.returncode}: {err.read()[-2000:]}")
            lines = out.read().strip().splitlines()
        shutil.rmtree(cache, ignore_errors=True)
        told = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}
        return Took(wall_s, usage.ru_utime + usage.ru_stime, told)

    def ask(self, *words: str) -> dict[str, Any]:
        """What `ett` says as JSON."""
        done = subprocess.run([ETT, *words, "--runs", str(self.folder / "runs"), "--json"], check=True, capture_output=True, text=True, env=self.env)
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

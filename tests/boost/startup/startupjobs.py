"""Jobs of the start-up tests: a program under a real `ett run`, and what is read back."""

import json
import os
import subprocess
import sys
from pathlib import Path

from ettrain.account.ledger import account
from ettrain.jobpaths import JobPaths
from ettrain.jobreader import JobReader

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).resolve().parents[3]
ETT = "import sys; from ettrain.cli import main; sys.exit(main(sys.argv[1:]))"


def clean_environment(**more):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("ETT_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_"))}
    return {**env, "OMP_NUM_THREADS": "1", **{k: str(v) for k, v in more.items()}}


def ett(*words, cwd, code=0, timeout=240, **more):
    """Run an `ett` command; returns what it printed."""
    done = subprocess.run([sys.executable, "-c", ETT, *map(str, words)], cwd=cwd, env=clean_environment(**more), capture_output=True, text=True, timeout=timeout, check=False)
    assert code is None or done.returncode == code, f"code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def recorded(tmp_path, *words, options=(), code=0, job="job", **more):
    """Run Python with these words under `ett run`; returns (last line as JSON or None, the job's history)."""
    done = ett("run", "--job", job, "--runs", tmp_path / "runs", *options, "--", sys.executable, *words, cwd=tmp_path, code=code, **more)
    lines = done.stdout.strip().splitlines()
    result = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else None
    return result, JobReader(JobPaths(tmp_path / "runs" / job)).read()


def ledger_of(history):
    return account(history).ledger


def torchrun(ranks, *words):
    return ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *map(str, words)]

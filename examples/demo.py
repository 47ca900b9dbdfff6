"""The demo: train a DLRM on two ranks, kill a rank twice with SIGKILL, resume, and show where the time went.

The training program knows nothing of ettrain. Run it with `make demo`, or `python examples/demo.py` where `ett` is installed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from ettrain.jobpaths import JobPaths
from ettrain.jobreader import JobReader

HERE = Path(__file__).resolve().parent
KILL_AFTER_STEP = (100, 150)
STEPS = 220


def main() -> int:
    """Make the data, run the job with two kills, print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("ett-runs/demo-files"), help="where data and checkpoints go")
    folder = parser.parse_args().folder
    shutil.rmtree(folder / "model", ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "criteo.tsv"
    if not data.exists():
        say("making 200,000 rows of Criteo-like data")
        subprocess.run([sys.executable, str(HERE / "dlrm/make_data.py"), "--out", str(data)], check=True)
    job = f"demo-{time.strftime('%H%M%S')}"
    runs = Path("ett-runs")
    code = train(job, runs, data, folder / "model")
    if code:
        say(f"the training ended with exit code {code}")
        return code
    page = runs / f"{job}.html"
    subprocess.run(["ett", "report", job, "--runs", str(runs)], check=True)
    subprocess.run(["ett", "report", job, "--runs", str(runs), "--html", str(page), "--force"], check=True, stdout=subprocess.DEVNULL)
    say(f"the page: {page.resolve()}")
    return 0


def train(job: str, runs: Path, data: Path, out: Path) -> int:
    """Run the job under `ett run`; kill rank 1 each time it passes one of the steps in KILL_AFTER_STEP."""
    command = ["ett", "run", "--runs", str(runs), "--job", job, "--restarts", "3", "--", "torchrun", "--standalone", "--nproc-per-node", "2"]
    program = [str(HERE / "dlrm/train.py"), "--data", str(data), "--out", str(out), "--steps", str(STEPS), "--save-every", "40"]
    say(f"training, {STEPS} steps on two ranks; rank 1 is killed after steps {KILL_AFTER_STEP[0]} and {KILL_AFTER_STEP[1]}")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    log = out.with_suffix(".stderr")
    paths = JobPaths(runs / job)
    waiting = list(KILL_AFTER_STEP)
    with log.open("wb") as errors, subprocess.Popen(command + program, stdout=subprocess.PIPE, stderr=errors, env=environment, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print("   ", line.rstrip(), flush=True)
            if waiting and line.startswith("step ") and int(line.split()[1]) >= waiting[0]:
                waiting.pop(0)
                kill_rank(paths, 1)
    if process.returncode:
        print(log.read_text(errors="replace")[-3000:], file=sys.stderr)
    return process.returncode


def kill_rank(paths: JobPaths, rank: int) -> None:
    """SIGKILL that rank's process of the attempt under way."""
    for process in JobReader(paths).read().attempts[-1].ranks:
        if process.rank == rank and process.alive:
            say(f"SIGKILL to rank {rank} (process {process.pid})")
            os.kill(process.pid, signal.SIGKILL)


def say(text: str) -> None:
    """A line of the demo's own."""
    print(f"==> {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())

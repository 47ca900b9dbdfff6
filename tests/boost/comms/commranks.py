"""Programs of tests/boost/comms, run as ranks of a real gloo group, or alone."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = Path(__file__).parent / "programs"


def free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def run_ranks(program, world, *words, timeout=120):
    """Run a program as `world` ranks; returns the JSON objects they print, by rank."""
    port = free_port()
    env = {key: value for key, value in os.environ.items() if not key.startswith(("ETT_", "TORCH_GLOO"))}
    env |= {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world), "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-W", "error::RuntimeWarning", str(PROGRAMS / f"{program}.py"), *map(str, words)]
    ranks = [subprocess.Popen(command, env=env | {"RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(world)]
    told = []
    try:
        for rank in ranks:
            out, err = rank.communicate(timeout=timeout)
            assert rank.returncode == 0, f"code {rank.returncode}\n{out}\n{err}"
            told.append(json.loads(out.strip().splitlines()[-1]))
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return told

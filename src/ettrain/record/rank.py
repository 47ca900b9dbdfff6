"""Which rank this process is, and the journal that is its own. What goes into it is the recorder's business."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from ettrain import clock
from ettrain._version import VERSION
from ettrain.events import SCHEMA, Record
from ettrain.jobpaths import JobPaths, attempt_name, rank_stem
from ettrain.journal import JournalWriter
from ettrain.settings import ENV_ATTEMPT, ENV_JOB_DIR

_RANK_VARIABLES: Final = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def rank_of_environment() -> tuple[int | None, int | None]:
    """(rank, world size) as the launcher's environment names them; None where it does not."""
    for rank, world in _RANK_VARIABLES:
        text = os.environ.get(rank, "")
        if text.isdecimal():
            size = os.environ.get(world, "")
            return int(text), int(size) if size.isdecimal() else None
    return None, None


def is_loader_worker() -> bool:
    """Whether this process reads data for a trainer."""
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return worker is not None and getattr(worker, "_worker_info", None) is not None


def is_child() -> bool:
    """Whether multiprocessing started this process: it may inherit a rank without being it, and is a trainer only once it trains."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        return True
    words = getattr(sys, "orig_argv", [])
    return "--multiprocessing-fork" in words or any("from multiprocessing.forkserver import" in word for word in words[1:6])


def attempt_folder(restart: str | None = None) -> Path | None:
    """Folder of the attempt that this process is part of; None outside a job.

    Args:
        restart: torchrun's number of the restart, where it is not this process's own environment that tells.
    """
    job_dir = os.environ.get(ENV_JOB_DIR)
    if job_dir is None:
        return None
    restarts = _number(os.environ.get("TORCHELASTIC_RESTART_COUNT", "") if restart is None else restart)
    return JobPaths(Path(job_dir)).attempt(attempt_name(_number(os.environ.get(ENV_ATTEMPT, "")), restarts))


def open_journal(folder: Path, rank: int | None) -> tuple[JournalWriter, Path]:
    """Create this process's journal; returns it and the path of its beat page.

    It is the rank's file; the process's own where another process of this rank was first; and where even that is taken, by a host
    on which the process id is the same, one with a number by chance.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pid = os.getpid()
    own = rank_stem(rank, pid, taken=True)
    for stem in (rank_stem(rank, pid), own):
        try:
            return JournalWriter(folder / f"{stem}.jsonl", exclusive=True), folder / f"{stem}.beat"
        except FileExistsError:
            continue
    stem = f"{own}-{os.urandom(4).hex()}"
    return JournalWriter(folder / f"{stem}.jsonl", exclusive=True), folder / f"{stem}.beat"


def head(rank: int | None, world: int | None) -> Record:
    """First record of the journal."""
    wall, t = clock.wall_pair()
    boot = sys.modules.get("_ettrain_boot")
    torch = sys.modules.get("torch")
    start = clock.process_start_ns(os.getpid())
    return {
        "k": "head", "schema": SCHEMA, "t": t, "wall": wall, "boot": clock.boot_id(), "host": os.uname().nodename,
        "pid": os.getpid(), "role": "rank", "rank": rank, "world": world, "start": start,
        "entered": max(getattr(boot, "ENTERED", t), start or 0), "devices": _number(os.environ.get("ETT_DEVICES_PER_RANK", "")) or 1,
        "python": sys.version.split()[0], "torch": str(getattr(torch, "__version__", "")), "ettrain": VERSION,
        "argv": " ".join(map(str, getattr(sys, "argv", [])[:8]))[:500],
    }  # fmt: skip


def _number(text: str) -> int:
    """A count; 0 where the text is none."""
    return int(text) if text.isdecimal() else 0

"""torchrun's agent: it alone learns how each rank's process ended. It writes a journal of its own beside the ranks'."""

from __future__ import annotations

import os
import sys
from typing import Any

from ettrain import clock
from ettrain._version import VERSION
from ettrain.events import SCHEMA, Record
from ettrain.journal import JournalWriter
from ettrain.record.guard import guard
from ettrain.record.hooks import private
from ettrain.record.hooks.wrap import wraps
from ettrain.record.rank import attempt_folder
from ettrain.record.recorder import recorder


def on_elastic(module: Any) -> None:
    """Watch the agent's wait for its workers."""
    found = private(module)
    if found is None:
        return
    run = found["PContext.wait"]

    @wraps(run)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder.leave()  # who waits for workers is no rank
        result = run(self, *args, **kwargs)
        if result is not None:
            try:
                _write(self, result)
            except Exception as error:  # noqa: BLE001 - the guard's rule
                guard.fault("exit codes of the ranks", error)
        return result

    module.PContext.wait = wait


def _write(context: Any, result: Any) -> None:
    envs = context.envs
    any_env: dict[str, str] = next(iter(envs.values()), {})
    folder = attempt_folder(any_env.get("TORCHELASTIC_RESTART_COUNT", "0"))
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    journal = JournalWriter(folder / f"agent-p{os.getpid()}.jsonl")
    try:
        wall, t = clock.wall_pair()
        journal.write_all([_head(wall, t), *_gone(context, result, t)])
    finally:
        journal.close()


def _head(wall: int, t: int) -> Record:
    return {
        "k": "head", "schema": SCHEMA, "t": t, "wall": wall, "boot": clock.boot_id(), "host": os.uname().nodename, "pid": os.getpid(),
        "role": "agent", "python": sys.version.split()[0], "ettrain": VERSION,
    }  # fmt: skip


def _gone(context: Any, result: Any, t: int) -> list[Record]:
    records: list[Record] = []
    for local_rank, pid in context.pids().items():
        failure = result.failures.get(local_rank)
        if failure is None and result.failures:
            continue
        code = 0 if failure is None else failure.exitcode
        rank = context.envs.get(local_rank, {}).get("RANK", "")
        records.append({"k": "gone", "t": t, "pid": pid, "rank": int(rank) if rank.isdigit() else None, "code": code})
    if result.failures:
        records.append({"k": "noticed", "t": t})
    return records


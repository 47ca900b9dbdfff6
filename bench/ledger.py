"""What it takes to account for a job, next to its peer: `python bench/ledger.py [--quick] [--peer] [--profile] [--json FILE]`.

  steps  a job of one rank and a million steps. The real recorder writes its journal, on a clock that is moved by hand: 10 s a step, a
         wait for data each, a checkpoint every 15 minutes. Peer: the calculator of ml-goodput-measurement 0.2.3 with as many step
         records in memory. Both are asked twice, the second time after one more record. Not the same work: the peer keeps every
         step, ettrain's recorder writes cumulative progress at intervals that grow with the job; that this is enough is the point.
  ranks  a job of 1,024 ranks on 128 hosts after 8 hours: start stages, waits, a checkpoint every 15 minutes, one failure and a resume
         (see `children/write_job.py`). Asked twice, the second time after 64 ranks have written some more.

Each reader is a process of its own. Seconds are wall time, with the CPU seconds beside them for machines that are busy; the peak is that of
the whole process (VmHWM). --quick: 100,000 steps, 64 ranks. --profile prints where ettrain's time goes, and measures nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import IO, Any, Final

import peer
from figures import keep, machine, progress, rows, say
from turns import CHILDREN

from ettrain.beat import read_beat
from ettrain.events import decode
from ettrain.jobpaths import JobPaths, rank_stem
from ettrain.journal import JournalWriter

HOURS: Final = 8
TALKING_RANKS: Final = 64
Answer = dict[str, Any]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What it takes to account for a job.")
    parser.add_argument("--quick", action="store_true", help="a tenth of it: under a minute")
    parser.add_argument(
        "--peer", action="store_true", help="install the peer (330 MB, in a virtual environment of its own) if it is missing"
    )
    parser.add_argument("--profile", action="store_true", help="print where the time goes instead")
    parser.add_argument("--json", metavar="FILE", help="also write the figures there")
    arguments = parser.parse_args()
    steps, ranks = (100_000, 64) if arguments.quick else (1_000_000, 1024)
    with tempfile.TemporaryDirectory(prefix="ett-bench-") as name:
        folder = Path(name)
        if arguments.profile:
            for kind, amount in (("steps", steps), ("ranks", ranks)):
                _profile(folder / kind, kind, amount)
            return
        results: dict[str, Any] = {"machine": machine(), "quick": arguments.quick}
        say(f"{results['machine']}{' quick' if arguments.quick else ''}")
        python, why = peer.python(install=arguments.peer)
        if python is None:
            say(f"peer not measured: {why}")
        results["steps"] = many_steps(folder / "steps", python, steps, turns=1 if arguments.quick else 2)
        results["ranks"] = many_ranks(folder / "ranks", ranks)
    keep(arguments.json, results)


def many_steps(job: Path, python: Path | None, steps: int, *, turns: int) -> dict[str, Any]:
    """One rank, many steps; ettrain, the peer once, and ettrain again as often as asked."""
    progress(f"{steps:,} steps: writing the journal")
    now = _write(job, "steps", steps)
    ours = [_ask_twice(job, now, [0])]
    theirs: list[Answer] = []
    if python is not None:
        progress(f"{steps:,} steps: peer")
        words = [str(python), str(CHILDREN / "peer_calculator.py"), str(steps)]
        theirs = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout)
    ours += [_ask_twice(job, now, [0]) for _ in range(turns)]
    for first, again in ours:
        _must(
            first["steps"] >= steps and again["steps"] > first["steps"],
            f"{steps} steps recorded, {first['steps']} and {again['steps']} found",
        )
    first, again = (_middle([pair[index] for pair in ours]) for index in (0, 1))
    say(f"\n{steps:,} steps, {first['read_mb']:.1f} MB of journal; median of {len(ours)} runs")
    table = [("", "first", "CPU", "next", "CPU", "peak"), _row("ettrain", first, again)]
    if theirs:
        table += [_row("peer", *theirs), _ratio(theirs, (first, again))]
    rows(table)
    return {"ettrain": ours, "peer": theirs}


def many_ranks(job: Path, ranks: int) -> dict[str, Any]:
    """Many ranks, one failure."""
    progress(f"{ranks:,} ranks: writing the journals")
    now = _write(job, "ranks", ranks)
    progress(f"{ranks:,} ranks: reading them")
    first, again = _ask_twice(job, now, range(min(TALKING_RANKS, ranks)))
    _must(first["failures"] == 1 and first["status"] == "running", f"one failure and a running job written, {first} found")
    say(f"\n{ranks:,} ranks, {HOURS} hours, one failure: {first['read_mb']:.0f} MB read, {again['read_mb']:.1f} MB when asked again")
    rows([("", "first", "CPU", "next", "CPU", "peak"), _row("ettrain", first, again)])
    for name, answer in (("first", first), ("next", again)):
        say(f"  {name}: reading {answer['read_s']:.2f} s, accounting {answer['account_s']:.2f} s")
    say(f"  ETT {first['ett_pct']:.2f}%, {first['steps']:,} steps, unsaved {first['unsaved_s']:.1f} s")
    return {"first": first, "again": again}


def _write(job: Path, kind: str, amount: int) -> int:
    """Make the job; returns the instant at which it stands (epoch ns)."""
    words = [sys.executable, str(CHILDREN / "write_job.py"), kind, str(job), str(amount), str(HOURS)]
    made = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return int(made["now_wall_ns"])


def _ask_twice(job: Path, now_wall_ns: int, ranks: range | list[int]) -> tuple[Answer, Answer]:
    """A reader's answers before and after those ranks wrote some more, which is taken back in the end."""
    words = [sys.executable, str(CHILDREN / "read_job.py"), str(job), str(now_wall_ns)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        first = _answer(process.stdout, job)
        before = [_write_more(job, rank) for rank in ranks]
        process.stdin.write("10\n")
        process.stdin.flush()
        again = _answer(process.stdout, job)
        process.stdin.close()
    for path, size in before:
        os.truncate(path, size)
    return first, again


def _answer(stdout: IO[str], job: Path) -> Answer:
    """The next answer; while it is awaited, the job's supervisor gives the signs of life that a running one gives."""
    while True:
        os.utime(JobPaths(job).supervisor_beat)
        if select.select([stdout], [], [], 5.0)[0]:
            answer: Answer = json.loads(stdout.readline())
            return answer


def _write_more(job: Path, rank: int) -> tuple[Path, int]:
    """Three more progress records of a rank in the job's last attempt; returns the journal and its size before."""
    paths = JobPaths(job)
    stem = paths.attempt(paths.attempt_names()[-1]) / rank_stem(rank, 0)
    path, beat = stem.with_suffix(".jsonl"), read_beat(stem.with_suffix(".beat"))
    if beat is None:
        raise AssertionError(path)
    records = filter(None, map(decode, reversed(path.read_bytes().splitlines())))
    last = next(record for record in records if record["k"] == "prog")
    size = path.stat().st_size
    journal = JournalWriter(path)
    journal.write_all([{**last, "t": beat.step_t + n * 1_000_000_000, "step": beat.step + n} for n in (1, 2, 3)])
    journal.close()
    return path, size


def _profile(job: Path, kind: str, amount: int) -> None:
    now = _write(job, kind, amount)
    os.utime(JobPaths(job).supervisor_beat)
    subprocess.run([sys.executable, str(CHILDREN / "read_job.py"), str(job), str(now), "profile"], check=True)


def _middle(answers: list[Answer]) -> Answer:
    return {
        name: median([answer[name] for answer in answers]) if isinstance(answers[0][name], float) else answers[0][name]
        for name in answers[0]
    }


def _row(name: str, first: Answer, again: Answer) -> tuple[str, ...]:
    return (
        name,
        f"{first['s']:.2f} s",
        f"{first['cpu_s']:.2f} s",
        f"{again['s']:.2f} s",
        f"{again['cpu_s']:.2f} s",
        f"{again['peak_mb']:.0f} MB",
    )


def _ratio(above: list[Answer], below: tuple[Answer, Answer]) -> tuple[str, ...]:
    pairs = [(above[index][name], below[index][name]) for index, name in ((0, "s"), (0, "cpu_s"), (1, "s"), (1, "cpu_s"), (1, "peak_mb"))]
    return ("peer / ettrain", *(f"{a / b:.0f} x" for a, b in pairs))


def _must(holds: bool, otherwise: str) -> None:
    if not holds:
        raise SystemExit(f"wrong answer: {otherwise}")


if __name__ == "__main__":
    main()

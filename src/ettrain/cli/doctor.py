"""`ett doctor`: is this machine, this folder, this job's journals sound? Each line says ok, or what to do."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from ettrain import clock
from ettrain.account.ledger import account
from ettrain.beat import open_beat, read_beat
from ettrain.errors import EttrainError, JournalError
from ettrain.jobpaths import JobPaths
from ettrain.jobreader import JobReader, find_job
from ettrain.journal import JournalTail
from ettrain.settings import value_of
from ettrain.supervise import processes

NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "lustre", "beegfs", "gpfs", "cifs", "fuse", "9p", "ceph", "afs", "smb3")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at."""

    level: str
    """'ok', 'warn' or 'bad'."""
    what: str
    text: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("job", nargs="?", help="check this job's files as well (default: machine and folder only)")
    parser.add_argument("--runs", help="folder of all jobs (default: ett-runs, or ETT_RUNS)")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Look; returns 1 if anything is bad."""
    runs = Path(str(value_of("runs", arguments.runs)))
    findings = [*_machine(), *_folder(runs)]
    if arguments.job is not None:
        findings.extend(_job(find_job(runs, arguments.job)))
    if arguments.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        width = max(len(finding.what) for finding in findings)
        for finding in findings:
            print(f"{finding.level:<4}  {finding.what:<{width}}  {finding.text}")
    return 1 if any(finding.level == "bad" for finding in findings) else 0


def _machine() -> Iterator[Finding]:
    yield Finding("ok", "python", f"{sys.version.split()[0]} at {sys.executable}")
    yield _torch()
    pid_fd = processes.open_pidfd(os.getpid())
    if pid_fd is None:
        yield Finding("warn", "pidfd", "this kernel has none: the end of a rank is known only to within the launcher's own notice")
    else:
        os.close(pid_fd)
        yield Finding("ok", "pidfd", "the end of every rank can be stamped as it happens")
    start = clock.process_start_ns(os.getpid())
    good = start is not None and 0 <= clock.monotonic_ns() - start < 3_600_000_000_000
    yield Finding("ok" if good else "warn", "process start", "readable from /proc" if good else "/proc does not tell: interpreter start is not measured")
    yield _entering()


def _torch() -> Finding:
    code = "import importlib.metadata as m; print(m.version('torch'))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if result.returncode:
        return Finding("warn", "torch", "not installed for this Python (fine if the training uses another one)")
    version = result.stdout.strip()
    parts = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    if parts < (2, 8):
        return Finding("warn", "torch", f"{version}: older than 2.8, some stages may not be measured")
    return Finding("ok", "torch", version)


def _entering() -> Finding:
    """Start a Python as `ett run` would, and see whether the recorder's stage 0 came in."""
    home = Path(__file__).resolve().parent.parent
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "ETT_JOB_DIR": folder, "ETT_HOME": str(home)}
        path = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = str(home / "record" / "inject") + (os.pathsep + path if path else "")
        code = "import sys; print('_ettrain_boot' in sys.modules)"
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    if result.stdout.strip() == "True":
        return Finding("ok", "entering", "the recorder enters a child Python")
    return Finding("bad", "entering", "the recorder does not enter a child Python: is PYTHONPATH ignored (-E, -I, PYTHONSAFEPATH wrappers)?")


def _folder(runs: Path) -> Iterator[Finding]:
    where = runs if runs.exists() else runs.absolute().parent
    if runs.exists() and not runs.is_dir():
        yield Finding("bad", "runs folder", f"{runs} is not a folder; choose another with --runs")
        return
    try:
        with tempfile.TemporaryDirectory(dir=where, prefix=".ett-doctor-") as folder:
            open_beat(Path(folder) / "x.beat", os.getpid())
            ok = read_beat(Path(folder) / "x.beat") is not None
    except OSError as error:
        yield Finding("bad", "runs folder", f"{where}: {error.strerror}. Jobs run, but unrecorded; choose another with --runs")
        return
    level, text = ("ok", f"{where} is writable and holds beat pages") if ok else ("bad", f"{where}: a page written there does not read back")
    yield Finding(level, "runs folder", text)
    kind = _file_system(where)
    if kind is not None and kind.startswith(NETWORK_FILE_SYSTEMS):
        text = f"{where} is on {kind}: the last steps before a host is lost may be seen late from other hosts"
        yield Finding("warn", "file system", text)


def _file_system(path: Path) -> str | None:
    """Type of the file system that holds `path`."""
    real = os.path.realpath(path)
    best: tuple[int, str] | None = None
    try:
        lines = Path("/proc/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        fields = line.split()
        if len(fields) > 2 and (real == fields[1] or real.startswith(fields[1].rstrip("/") + "/")) and (best is None or len(fields[1]) > best[0]):
            best = (len(fields[1]), fields[2])
    return best[1] if best else None


def _job(paths: JobPaths) -> Iterator[Finding]:
    files = sorted(paths.root.glob("*.jsonl")) + sorted(paths.attempts.glob("*/*.jsonl"))
    sound = 0
    for path in files:
        tail = JournalTail(path)
        try:
            tail.read_new()
        except JournalError as error:
            yield Finding("bad", "journal", str(error))
            continue
        if tail.head is None:
            yield Finding("warn", "journal", f"{path}: empty")
        elif tail.bad_lines or tail.torn:
            yield Finding("warn", "journal", f"{path}: {tail.bad_lines} unreadable line(s){', torn at the end' if tail.torn else ''}; the rest counts")
        else:
            sound += 1
    yield Finding("ok" if sound == len(files) else "warn", "journals", f"{sound} of {len(files)} sound")
    try:
        history = JobReader(paths).read()
        ledger = account(history).ledger
    except EttrainError as error:
        yield Finding("bad", "ledger", str(error))
        return
    faults = sum(rank.faults for attempt in history.attempts for rank in attempt.ranks)
    texts = sorted({text for attempt in history.attempts for rank in attempt.ranks for text in rank.fault_texts})
    yield Finding("warn" if faults else "ok", "recorder", f"{faults} fault(s) of its own{': ' + '; '.join(texts[:3]) if texts else ''}")
    if not ledger.trained:
        yield Finding("warn", "steps", "no step was recorded: was PYTHONPATH overwritten, or Python run with -E, -I or -S?")
    yield Finding("ok", "ledger", f"adds up: {ledger.wall_ns} ns of wall time, every one in exactly one leaf")
    for note in history.notes:
        yield Finding("warn", "note", note)

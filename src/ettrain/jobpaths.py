"""Every file of a job's folder, named in one class. Nothing here opens a file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

JOB_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class JobPaths:
    """RUNS/<job>/: `root` is that folder.

    job.json                                what was asked
    supervisor.jsonl, supervisor.beat       attempts, exits, decisions; a sign of life
    attempts/<NNN>/rank-<RRRRR>.jsonl       one journal per rank's process (-p<pid> where the rank is not known or taken)
    attempts/<NNN>/rank-<RRRRR>.beat        its beat page
    attempts/<NNN>/agent-p<pid>.jsonl       what torchrun's agent saw
    publishes/<id>-<who>-p<pid>-<ms>.jsonl  one journal per process that asked for a publication or worked on it
    learned/<what>.json                     what one attempt learned for the next: batch shapes; failures so far
    learned/<what>-rank-<RRRRR>.json, .pt   the same for one rank that differs; a real batch that was asked to be kept
    """

    root: Path

    @property
    def name(self) -> str:
        """The job's name."""
        return self.root.name

    @property
    def job_file(self) -> Path:
        """What was asked: command, settings, labels."""
        return self.root / "job.json"

    @property
    def supervisor_journal(self) -> Path:
        """Attempts, exits, decisions."""
        return self.root / "supervisor.jsonl"

    @property
    def supervisor_beat(self) -> Path:
        """The supervisor's sign of life."""
        return self.root / "supervisor.beat"

    @property
    def attempts(self) -> Path:
        """Folder of the attempts' folders."""
        return self.root / "attempts"

    @property
    def publishes(self) -> Path:
        """Journals of the publications that the job asked for."""
        return self.root / "publishes"

    def learned(self, what: str) -> Path:
        """What earlier attempts learned for the next one, e.g. `batch`; each is replaced as a whole."""
        return self.root / "learned" / f"{what}.json"

    def attempt(self, name: str) -> Path:
        """Folder of one attempt."""
        return self.attempts / name

    def attempt_names(self) -> list[str]:
        """Names of the attempts' folders, in order."""
        if not self.attempts.is_dir():
            return []
        return sorted((path.name for path in self.attempts.iterdir() if path.is_dir()), key=attempt_key)


def attempt_name(launch: int, restart: int = 0) -> str:
    """Folder name: launch 3 -> '003'; torchrun's own second restart within it -> '003-r2'."""
    return f"{launch:03d}" if not restart else f"{launch:03d}-r{restart}"


def attempt_key(name: str) -> tuple[int, int]:
    """Sorts attempts in the order of their starts; names that are none of ours sort last."""
    match = re.fullmatch(r"(\d+)(?:-r(\d+))?", name)
    return (int(match[1]), int(match[2] or 0)) if match else (1 << 62, 0)


def rank_stem(rank: int | None, pid: int, *, taken: bool = False) -> str:
    """File name without suffix of a rank's journal and beat."""
    if rank is None:
        return f"rank-p{pid}"
    return f"rank-{rank:05d}-p{pid}" if taken else f"rank-{rank:05d}"

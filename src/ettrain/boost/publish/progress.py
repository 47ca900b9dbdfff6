"""How far a request has come: a line per change in its folder, and what the lines say together. Standard library only."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any, Final

from ettrain import clock
from ettrain.boost.publish.target import Place

ASKED, RUNNING, PUBLISHED, SUPERSEDED, FAILED, INTERRUPTED = "asked", "running", "published", "superseded", "failed", "interrupted"
DONE: Final = (PUBLISHED, SUPERSEDED)
OVER: Final = (*DONE, FAILED, INTERRUPTED)
"""Nothing works on it any more."""
_START_NS: Final = 60_000_000_000
"""A local process that has not begun by then never will."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What has become of a request."""

    state: str
    stage: str = ""
    """What it is at, or failed at."""
    why: str = ""
    version: str = ""
    tries: int = 0
    t_ns: int = 0
    """Wall clock of the last change."""


def note(place: Place, state: str, **more: Any) -> None:
    """Write down a change: one line, by one write."""
    line = json.dumps({"t": clock.wall_pair()[0], "state": state, "pid": os.getpid(), "host": os.uname().nodename, **more}) + "\n"
    with place.state.open("ab") as file:
        file.write(line.encode())


def notes(place: Place) -> list[dict[str, Any]]:
    """All changes; a torn line is left out."""
    try:
        lines = place.state.read_bytes().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            told = json.loads(line)
        except ValueError:
            continue
        if isinstance(told, dict) and isinstance(told.get("state"), str):
            found.append(told)
    return found


def status_of(place: Place) -> Status:
    """What has become of a request, as far as this host can tell."""
    told = notes(place)
    if not told:
        return Status(state=ASKED)
    last = told[-1]
    state = str(last["state"])
    here = last.get("host") == os.uname().nodename
    if state == RUNNING and here and not place.is_busy:
        state = INTERRUPTED
    if (
        state == ASKED
        and last.get("where") == "process"
        and here
        and not place.is_busy
        and clock.wall_pair()[0] - int(last.get("t", 0)) > _START_NS
    ):
        state = INTERRUPTED
    stage = next((str(one["stage"]) for one in reversed(told) if one.get("stage")), "")
    return Status(
        state=state, stage=stage, why=str(last.get("why") or ""), version=str(last.get("version") or ""),
        tries=int(last.get("try") or 0), t_ns=int(last.get("t") or 0),
    )  # fmt: skip

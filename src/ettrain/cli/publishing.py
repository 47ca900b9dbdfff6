"""What `ett run` says of the models its job asked for, once the devices are free, and what its exit code makes of them."""

from __future__ import annotations

import argparse
from pathlib import Path

from ettrain.boost.publish import progress
from ettrain.boost.publish.progress import status_of
from ettrain.cli.publish import of_job, wait
from ettrain.errors import PublishFailedError
from ettrain.supervise.recording import tell

FOREVER_S = 0.0


def add_argument(parser: argparse.ArgumentParser) -> None:
    """Declare `--wait-publish`."""
    parser.add_argument(
        "--wait-publish",
        nargs="?",
        const=FOREVER_S,
        type=float,
        metavar="SECONDS",
        help="after the job, the devices being free, wait for the models it asked for (at most SECONDS); ends with 75 where one failed",
    )


def settle(job: Path, since_ns: int, code: int, *, wait_s: float | None, quiet: bool) -> int:
    """The exit code, given what has become of the models asked for since `since_ns` (wall clock).

    A model that is known not to be published makes 75 of a 0; one still being made is said, and waited for only where that was asked for.
    """
    found = of_job(job, since_ns=since_ns)
    if not found:
        return code
    if wait_s is not None:
        try:
            wait(found, wait_s)
        except PublishFailedError as error:
            tell(str(error))
            return code or error.exit_code
        return code
    states = {place: status_of(place) for place in found}
    for place, status in states.items():
        if status.state in (progress.FAILED, progress.INTERRUPTED):
            bad = PublishFailedError(str(place.root), status.state, status.why, str(place.log))
            tell(str(bad))
            code = code or bad.exit_code
    waiting = [place for place, status in states.items() if status.state not in progress.OVER]
    if waiting and not quiet:
        names = ", ".join(place.root.name for place in waiting)
        tell(f"the job is done and its devices are free; {names} is still being published: ett publish wait {job.name}")
    return code

"""`ett run --dynamic-sources auto|VALUE`: which sources torch.compile is told to take as dynamic from the start."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ettrain.account.dynamic import value_of as value_from
from ettrain.account.sources import VARIABLE, is_valid, joined
from ettrain.errors import UsageError
from ettrain.jobpaths import JobPaths
from ettrain.learned import Lessons
from ettrain.supervise.recording import tell

AUTO, OFF = "auto", "off"
LONGEST = 60_000
"""Characters; Linux takes twice as many in one variable."""
SHOWN = 400
"""Characters of a value that are shown."""


def check(asked: str) -> None:
    """Refuse what torch could not use.

    Raises:
        UsageError: an entry is no regular expression; inside the training that would be an error in the midst of compiling.
    """
    if asked not in ("", AUTO, OFF) and not is_valid(asked):
        raise UsageError(
            f"--dynamic-sources {asked!r}: every entry between commas is a regular expression for torch, and one of these is not valid. "
            "Escape brackets, dots and dashes of names, or use auto"
        )


def environment(asked: str, lessons: Lessons, job: JobPaths, *, quiet: bool, given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variable for the next attempt. What the environment holds already stays; only what it does not mark is added.

    Args:
        asked: `auto`, a value, `off` or ''.
        lessons: what is known of the program.
        job: the job about to make an attempt.
        quiet: say nothing of it.
        given: the environment.
    """
    if asked in ("", OFF):
        return {}
    before = given.get(VARIABLE, "")
    if asked == AUTO:
        added = value_from(lessons.dynamic(job), before)
        source = "learned from earlier attempts"
    else:
        added, source = asked, "as asked"
    if len(added) > LONGEST:
        tell(f"{len(added)} characters of dynamic sources are more than an environment can hold; none are applied")
        return {}
    if not quiet:
        program = os.path.basename(lessons.program)
        kept = f"{VARIABLE} is set and stays" if before else ""
        what = f"dynamic from the start, {source}: {added[:SHOWN]}{'...' if len(added) > SHOWN else ''}" if added else ""
        tell("; ".join(filter(None, [kept, what])) or f"nothing is known yet of dynamic shapes in {program}: this attempt will teach it")
    return {VARIABLE: joined(before, added)} if added else {}

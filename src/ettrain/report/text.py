"""`ett report JOB` as text: the headline, what it is made of, how to trust it, what to type next. The sections are in `sections`.

Foreign texts (names, exceptions) are cleaned before they are shown: a job cannot redraw the terminal it is reported on.
"""

from __future__ import annotations

from typing import Final

from ettrain.account.history import JobHistory
from ettrain.account.ledger import Account
from ettrain.report.bars import Ink
from ettrain.report.commsection import comms_section
from ettrain.report.compiles import compiles_section
from ettrain.report.publishes import publishes_section
from ettrain.report.recompiles import recompiles_section
from ettrain.report.sections import (
    Sheet,
    attempts_section,
    headline_section,
    incidents_section,
    losses_section,
    metrics_section,
    next_section,
    notes_section,
    startup_section,
)
from ettrain.report.startgraph import startgraph_section

MIN_WIDTH: Final = 80
MAX_WIDTH: Final = 160


def render_text(
    account: Account,
    job: JobHistory,
    *,
    width: int,
    colour: bool,
    explain_startup: bool,
    compiles: bool = False,
    recompiles: bool = False,
    comms: bool = False,
    runs: str = "",
) -> str:
    """The report for a terminal.

    Args:
        account: what the accounting says.
        job: the history it was made from.
        width: columns; lines stay within it (80 to 160).
        colour: whether escape sequences may be used.
        explain_startup: add the table of what the start consists of.
        compiles: add what torch.compile compiled, what came out of caches, and why the rest did not.
        recompiles: add what torch.compile compiled again, why, and what to do about it.
        comms: add the tables of the collectives of the start.
        runs: what `--runs` must be given in the next command, '' where the default will do.
    Returns:
        Lines that end with a newline.
    """
    sheet = Sheet(account=account, job=job, width=max(MIN_WIDTH, min(width, MAX_WIDTH)), ink=Ink(colour))
    lines = headline_section(sheet)
    if explain_startup:
        lines += startup_section(sheet)
        lines += startgraph_section(job, sheet.width, sheet.ink)
    if compiles:
        lines += compiles_section(sheet)
    if recompiles:
        lines += recompiles_section(sheet)
    if comms:
        lines += comms_section(sheet)
    lines += metrics_section(sheet)
    lines += attempts_section(sheet)
    lines += losses_section(sheet)
    lines += incidents_section(sheet)
    lines += publishes_section(job, sheet.width, sheet.ink)
    lines += notes_section(sheet)
    lines += next_section(sheet, explained=explain_startup, recompiles=recompiles, runs=runs)
    return "\n".join(lines) + "\n"

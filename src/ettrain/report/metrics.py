"""The figures of a job as people read them: name, value, remark; and the headline as a sentence. Words only, no layout."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final, NamedTuple

from ettrain.account.history import JobHistory
from ettrain.account.ledger import Account, Leaf, Ledger
from ettrain.lifecycle import FAILURE
from ettrain.report.figures import can
from ettrain.report.palette import group_of
from ettrain.report.units import clean, duration, percent, plural

HOUR_NS: Final = 3_600_000_000_000
RATE_FROM_NS: Final = 10 * HOUR_NS
"""Device time below which a failure rate would be noise."""
FORMULA: Final = "ETT by formula"
NOT_CARRIED: Final = "not in this source"


def parts_of(leaf: Leaf, limit: int) -> list[tuple[str, int]]:
    """The finer labels of a leaf and their ns, most first, where they say more than the leaf: at most `limit`, and the rest as one.

    What takes less than a twentieth of the leaf joins the rest.
    """
    named = sorted(((ns, clean(part)) for part, ns in leaf.parts.items() if part), key=lambda item: (-item[0], item[1]))
    shown = [(part, ns) for ns, part in named[:limit] if 20 * ns >= leaf.wall_ns]
    rest = leaf.wall_ns - sum(ns for _, ns in shown)
    others = len(named) - len(shown)
    if shown and rest:
        shown.append((f"{others} others" if others > 1 else "other", rest))
    return shown


class Metric(NamedTuple):
    """One figure."""

    name: str
    value: str
    remark: str


def group_sums(ledger: Ledger) -> dict[str, int]:
    """Wall ns per group."""
    sums = {"effective": ledger.effective_ns}
    for leaf in ledger.leaves:
        key = group_of(leaf.path).key
        sums[key] = sums.get(key, 0) + leaf.wall_ns
    return sums


def short(path: str) -> str:
    """A leaf's path as people say it: 'start/compile', 'restart/compile', 'unsaved'."""
    return clean(path).removeprefix("idle/").removeprefix("failure/")


def show_some(count: int, limit: int) -> tuple[list[int], int]:
    """Indices to show of `count`, the first and the last of them where there are too many; and how many are left out."""
    if count <= limit:
        return list(range(count)), 0
    first = limit // 2
    return [*range(first), *range(count - (limit - first), count)], count - limit


def meaning_of(ledger: Ledger, job: JobHistory) -> str:
    """The headline as a sentence."""
    held = "has held" if ledger.status == "running" else "held"
    text = f"Of the {duration(ledger.wall_ns)} that this job {held} its hardware, {duration(ledger.effective_ns)} trained on new data"
    text += " whose result survives." if can(job, "unsaved") else "."
    if ledger.at_risk_ns and can(job, "unsaved"):
        text += f" Of that, {duration(ledger.at_risk_ns)} is at risk until the next checkpoint."
    sums = sorted(((ns, key) for key, ns in group_sums(ledger).items() if key != "effective" and ns), reverse=True)
    if sums:
        parts = ", ".join(f"{key} {duration(ns)}" for ns, key in sums[:4])
        lost = ledger.wall_ns - ledger.effective_ns
        text += f" The other {duration(lost)} went to {parts}{' and less' if len(sums) > 4 else ''}."
    return text


def metrics_of(account: Account, job: JobHistory) -> Iterator[Metric]:
    """The figures of a job in the order in which they are read."""
    if account.frames:
        yield from itertools.starmap(Metric, _metrics(account, job))


def _metrics(account: Account, job: JobHistory) -> Iterator[tuple[str, str, str]]:
    ledger = account.ledger
    reached = bool(account.frames) and account.frames[0].first_step_t is not None
    remark = "hardware allocated → first batch trained" if reached else "so far: the first attempt trained no batch"
    if not reached and ledger.status != "running":
        remark = "and then the first attempt stopped, before its first batch"
    yield "Time to start", _value(job, "tts", ledger.time_to_start_ns), remark
    yield "Time to recover", *_recovery(ledger, job)
    yield "Failures", *_failures(ledger, job)
    error = sum(incident.unsaved_error_ns for incident in ledger.incidents)
    remark = f"{percent(ledger.unsaved_ns, ledger.wall_ns)} of the wall time" if ledger.unsaved_ns else "no training was rolled back"
    yield "Unsaved training", _value(job, "unsaved", ledger.unsaved_ns), remark + (f" (± {duration(error)})" if error else "")
    if ledger.at_risk_ns:
        yield "At risk", _value(job, "unsaved", ledger.at_risk_ns), "trained since the last durable checkpoint"
    yield (
        "Repeated work",
        _value(job, "unsaved", ledger.repeated_work_ns),
        "unsaved training, start stages done again" if ledger.repeated_work_ns else "nothing was done twice",
    )
    blocking = f"in {plural(ledger.saves, 'save')}" if ledger.saves else "no save was seen"
    yield "Checkpoint blocking", _value(job, "checkpoint_blocking", ledger.checkpoint_blocking_ns), blocking
    yield "Time to shut down", *_shut_down(ledger, job)
    if ledger.queue_ns is not None or not can(job, "queue"):
        share = percent(ledger.effective_ns, ledger.wall_ns + (ledger.queue_ns or 0))
        remark = "before the first allocation" + (f"; ETT with it {share}" if can(job, "ett") else "")
        yield "Queue", _value(job, "queue", ledger.queue_ns or 0), remark
    if can(job, "ett", "tts", "ttr") and ledger.wall_ns:
        yield FORMULA, *_formula(ledger)


def _value(job: JobHistory, figure: str, ns: int) -> str:
    return duration(ns) if can(job, figure) else NOT_CARRIED


def _recovery(ledger: Ledger, job: JobHistory) -> tuple[str, str]:
    if not can(job, "ttr"):
        return NOT_CARRIED, ""
    times = [incident.time_to_recover_ns for incident in ledger.incidents]
    if not times:
        return "-", "no interruption"
    if len(times) == 1:
        if not ledger.incidents[0].recovered:
            return duration(
                times[0]
            ), "so far: no later attempt has trained" if ledger.status == "running" else "and no later attempt trained"
        return duration(times[0]), "work stopped → first batch of the next attempt"
    shown, more = show_some(len(times), 6)
    each = ", ".join(duration(times[index]) for index in shown) + (f" and {more} more" if more else "")
    return duration(sum(times) // len(times)), f"mean of {plural(len(times), 'interruption')}: {each}"


def _failures(ledger: Ledger, job: JobHistory) -> tuple[str, str]:
    if not can(job, "failures"):
        return NOT_CARRIED, ""
    kinds: dict[str, dict[str, int]] = {}
    for incident in ledger.incidents:
        classes = kinds.setdefault(incident.diagnosis.kind, {})
        classes[incident.diagnosis.cls] = classes.get(incident.diagnosis.cls, 0) + 1
    failures = kinds.pop(FAILURE, {})
    count = sum(failures.values())
    words = [f"{cls} {times:,}" for cls, times in sorted(failures.items(), key=lambda item: (-item[1], item[0]))]
    if count and can(job, "devices") and ledger.device_wall_ns >= RATE_FROM_NS:
        words.append(f"{count * 1000 * HOUR_NS / ledger.device_wall_ns:,.1f} per 1,000 device-hours")
    others = [f"{kind.replace('_', ' ')} {sum(classes.values())}" for kind, classes in kinds.items()]
    text = ", ".join(words) or "none"
    return f"{count:,}", text + (f"; beside them: {', '.join(others)}" if others else "")


def _shut_down(ledger: Ledger, job: JobHistory) -> tuple[str, str]:
    if not can(job, "time_to_shut_down"):
        return NOT_CARRIED, ""
    if ledger.time_to_shut_down_ns is None:
        return "-", "still running" if ledger.status == "running" else "it did not end in good order"
    return duration(ledger.time_to_shut_down_ns), "last step done → hardware released"


def _formula(ledger: Ledger) -> tuple[str, str]:
    wall = ledger.wall_ns
    rest = sum(ledger.residual.values())
    claimed = ledger.effective_ns + rest
    text = "1 - (time to start + recoveries) / wall time"
    if rest:
        parts = [f"{short(path)} {percent(ns, wall)}" for path, ns in list(ledger.residual.items())[:3]]
        more = ", ..." if len(ledger.residual) > 3 else ""
        text += f"; it leaves out {percent(rest, wall)}: {', '.join(parts)}{more}"
    return percent(claimed, wall), text

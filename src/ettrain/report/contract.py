"""`ett report JOB --json`: the contract that other programs are built on. Every key stands in docs/report-json.md.

Versioned by `SCHEMA`: keys are added, never renamed and never given another meaning within one number. Seconds are floats of exact
integer nanoseconds, and the integers stand beside them where they must add up: the leaves' `wall_ns` and `effective_ns` are
`wall_ns`, exactly. What the source cannot carry is null.
"""

from __future__ import annotations

from typing import Final

from ettrain._version import VERSION
from ettrain.account.history import JobHistory
from ettrain.account.ledger import Account, AttemptRow, Incident, Leaf, Ledger, number_of
from ettrain.account.rollback import Resume
from ettrain.lifecycle import FAILURE, PREEMPTION, STOP, USER_ERROR
from ettrain.report.comms import comms_dict, start_traffic
from ettrain.report.compiles import compiles_dict
from ettrain.report.figures import can, carried
from ettrain.report.notes import faults_of, notes_of, untracked_ns
from ettrain.report.palette import group_of
from ettrain.report.publishes import publishes_dict
from ettrain.report.startgraph import startgraph_dict
from ettrain.report.units import instant, seconds

SCHEMA: Final = 1

Json = dict[str, object]
"""A JSON object."""


def report_dict(account: Account, job: JobHistory) -> Json:
    """The report as JSON's own types, keys in a fixed order.

    Args:
        account: what the accounting says.
        job: the history it was made from.
    """
    ledger = account.ledger
    with_incidents = can(job, "incidents")
    return {
        "schema": SCHEMA,
        "ettrain": VERSION,
        "job": ledger.job,
        "status": ledger.status,
        "start": instant(ledger.start),
        "end": None if ledger.status == "running" else instant(ledger.end),
        "command": list(job.command),
        **_measure(ledger, job),
        **_time(ledger, job),
        "leaves": [_leaf(leaf, job) for leaf in ledger.leaves] if can(job, "ett") else None,
        **_metrics(account, job),
        **_counts(ledger, job),
        "incidents": [_incident(incident, job) for incident in ledger.incidents] if with_incidents else None,
        "attempts": [_attempt(row) for row in ledger.attempts],
        "recorder": _recorder(job),
        "startup_runs": startgraph_dict(job),
        "compiles": compiles_dict(job),
        "comms": comms_dict(start_traffic(job)),
        "publishes": publishes_dict(job),
        "notes": [{"level": note.level, "text": note.text} for note in notes_of(account, job)],
        "supports": list(carried(job)),
    }


def _measure(ledger: Ledger, job: JobHistory) -> Json:
    with_queue = None
    if ledger.queue_ns is not None and ledger.wall_ns and can(job, "ett", "queue"):
        with_queue = 100.0 * ledger.effective_ns / (ledger.wall_ns + ledger.queue_ns)
    return {
        "ett_pct": ledger.ett_pct if can(job, "ett") else None,
        "ett_pct_with_queue": with_queue,
        "ett_formula": _formula(ledger) if can(job, "ett", "tts", "ttr") else None,
    }


def _formula(ledger: Ledger) -> Json | None:
    if not ledger.wall_ns:
        return None
    inside: dict[str, int] = {}
    for path, ns in ledger.residual.items():
        name = path.rsplit("/", 1)[-1]
        inside[name] = inside.get(name, 0) + ns
    return {
        "value_pct": ledger.formula_pct,
        "residual_pct": 100.0 * sum(inside.values()) / ledger.wall_ns,
        "residual_ns": sum(inside.values()),
        "residual_in": {name: seconds(ns) for name, ns in inside.items()},
    }


def _time(ledger: Ledger, job: JobHistory) -> Json:
    ett, unsaved, devices = can(job, "ett"), can(job, "unsaved"), can(job, "devices")
    return {
        "wall_s": seconds(ledger.wall_ns),
        "wall_ns": ledger.wall_ns,
        "queue_s": _seconds(ledger.queue_ns, carried=can(job, "queue")),
        "effective_s": _seconds(ledger.effective_ns, carried=ett),
        "effective_ns": ledger.effective_ns if ett else None,
        "at_risk_s": _seconds(ledger.at_risk_ns, carried=unsaved),
        "untracked_s": _seconds(untracked_ns(ledger), carried=ett),
        "devices": ledger.devices if devices else None,
        "device_wall_s": _seconds(ledger.device_wall_ns, carried=devices),
        "device_wall_ns": ledger.device_wall_ns if devices else None,
        "effective_device_s": _seconds(ledger.effective_device_ns, carried=ett and devices),
        "effective_device_ns": ledger.effective_device_ns if ett and devices else None,
    }


def _metrics(account: Account, job: JobHistory) -> Json:
    ledger = account.ledger
    reached = bool(account.frames) and account.frames[0].first_step_t is not None
    saving, unsaved = can(job, "checkpoint_blocking"), can(job, "unsaved")
    return {
        "trained": ledger.trained if can(job, "ett") else None,
        "time_to_start_s": _seconds(ledger.time_to_start_ns, carried=can(job, "tts")),
        "time_to_start_reached": reached if can(job, "tts") else None,
        "time_to_recover_mean_s": _mean_recovery(ledger) if can(job, "ttr") else None,
        "time_to_shut_down_s": _seconds(ledger.time_to_shut_down_ns, carried=can(job, "time_to_shut_down")),
        "checkpoint_blocking_s": _seconds(ledger.checkpoint_blocking_ns, carried=saving),
        "saves": ledger.saves if saving else None,
        "unsaved_s": _seconds(ledger.unsaved_ns, carried=unsaved),
        "repeated_work_s": _seconds(ledger.repeated_work_ns, carried=unsaved),
        "steps": ledger.steps if can(job, "ett") else None,
        "step_sources": list(ledger.step_sources),
    }


def _mean_recovery(ledger: Ledger) -> float | None:
    if not ledger.incidents:
        return None
    return seconds(sum(incident.time_to_recover_ns for incident in ledger.incidents)) / len(ledger.incidents)


def _counts(ledger: Ledger, job: JobHistory) -> Json:
    kinds = (FAILURE, PREEMPTION, USER_ERROR, STOP)
    numbers = [number_of(ledger, kind) if can(job, "failures") else None for kind in kinds]
    classes: dict[str, int] = {}
    for incident in ledger.incidents:
        classes[incident.diagnosis.cls] = classes.get(incident.diagnosis.cls, 0) + 1
    return {
        "number_of_failures": numbers[0],
        "number_of_preemptions": numbers[1],
        "number_of_user_errors": numbers[2],
        "number_of_stops": numbers[3],
        "number_by_class": classes if can(job, "failures") else None,
    }


def _leaf(leaf: Leaf, job: JobHistory) -> Json:
    devices, unsaved = can(job, "devices"), can(job, "unsaved")
    parts = sorted(leaf.parts.items(), key=lambda item: (-item[1], item[0]))
    return {
        "path": leaf.path,
        "component": leaf.component,
        "group": group_of(leaf.path).key,
        "wall_s": seconds(leaf.wall_ns),
        "device_s": _seconds(leaf.device_ns, carried=devices),
        "repeated_s": _seconds(leaf.repeated_ns, carried=unsaved),
        "wall_ns": leaf.wall_ns,
        "device_ns": leaf.device_ns if devices else None,
        "repeated_ns": leaf.repeated_ns if unsaved else None,
        "parts": [{"part": part, "wall_s": seconds(ns), "wall_ns": ns} for part, ns in parts],
    }


def _incident(incident: Incident, job: JobHistory) -> Json:
    recovery, unsaved = can(job, "ttr"), can(job, "unsaved")
    return {
        "kind": incident.diagnosis.kind,
        "class": incident.diagnosis.cls,
        "component": incident.diagnosis.component,
        "rank": incident.diagnosis.rank,
        "text": incident.diagnosis.text,
        "attempt": incident.attempt,
        "at": instant(incident.at),
        "detect_s": _seconds(incident.detect_ns, carried=recovery),
        "reschedule_s": _seconds(incident.reschedule_ns, carried=recovery),
        "restart_s": _seconds(incident.restart_ns, carried=recovery),
        "time_to_recover_s": _seconds(incident.time_to_recover_ns, carried=recovery),
        "recovered": incident.recovered if recovery else None,
        "time_to_catch_up_s": _seconds(incident.time_to_catch_up_ns, carried=can(job, "ttc")),
        "unsaved_s": _seconds(incident.unsaved_ns, carried=unsaved),
        "unsaved_error_s": _seconds(incident.unsaved_error_ns, carried=unsaved),
        "resumed_step": incident.resumed_step,
        "resume_source": incident.resume_source,
    }


def _attempt(row: AttemptRow) -> Json:
    return {
        "number": row.number,
        "name": row.name,
        "start": instant(row.start),
        "end": None if row.running else instant(row.end),
        "exit": row.exit,
        "ranks": row.ranks,
        "first_step": row.first_step,
        "last_step": row.last_step,
        "resume": _resume(row.resume),
    }


def _resume(resume: Resume) -> Json:
    return {
        "source": resume.source,
        "step": resume.step,
        "snapshot": None if resume.snapshot is None else instant(resume.snapshot),
        "error_s": seconds(resume.error_ns),
    }


def _recorder(job: JobHistory) -> Json:
    faults, texts = faults_of(job)
    return {
        "faults": faults,
        "fault_texts": texts[:8],
        "journals": job.journals,
        "torn_lines": job.torn_lines,
        "clock_correction_s": seconds(job.clock_correction_ns),
    }


def _seconds(ns: int | None, *, carried: bool) -> float | None:
    return seconds(ns) if carried and ns is not None else None

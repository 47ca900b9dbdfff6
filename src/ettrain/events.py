"""The record format: what a journal line and a beat page hold. Data only; `journal` and `beat` read and write them.

A journal line is one JSON object of at most `MAX_LINE` bytes. Every record has `k` (kind) and `t` (monotonic ns of the
host's boot). Fields that a reader does not know are kept, kinds it does not know are counted. Kinds:

    head    first line: schema, wall (the wall clock at t), boot, host, pid, role, and for a rank: rank, world, start, entered
    rank    rank and world size, once known for certain
    clock   wall: the wall clock at t, again
    span    name, end, by ("found" or "user"), lane (0 = main thread), part (finer label), and free attributes
    name    code, name: a name the beat page refers to by number
    mark    name: an instant (first_forward, first_backward, first_step, ...)
    prog    step, wait, limit: cumulative progress; `wait` is ns spent in waits too short for a span, `limit` what a step may take
    recount the steps counted so far were none: a better source of the count has turned up
    slow    end, typical: one step took [t, end] although it typically takes `typical` ns
    said    step, local: the program says that its own step count is `step` after `local` counted steps
    cache   act ("fetch" or "publish"), end, entries, bytes, reason: what the compile cache did
    startup one run of ett.Startup: end, sequential, err, failed, stages (name, lane, begin, end, CPU ns, needs, after; times since t,
            -1 = never; needs and after are places), first (place of the first stage here, where one record has no room for all)
    commit  an asynchronous save became durable: save (the span's number), ok, id
    interval how often a checkpoint is saved from now on: every ("auto", "time", "steps", "never"), seconds, steps, why
    stop    a planned stop reached the training: by (a signal's name or "time limit"), left (seconds until the process is killed, or null)
    exc     an exception left the program: type, message, trace
    dims    part, where, seen, was: what torch.compile has seen so far of each source of a function, and before the compilation that
            began at t; or applied: the dynamic sources that were set
    refused part, where, reason: torch.compile did not compile a function again, since it has been too often
    tuned   end, kind, op, inputs, device, version, winner, config, best_ms, runner_up, runner_up_ms, choices: a search among kernels;
            or state (pinned, ignored) and reason: what a file of winners did instead
    exit    the interpreter began to end in good order
    fault   a fault of the recorder's own: where, error, count
    group   a process group this rank is a member of: name, size, ranks ('0-7,16'), same (equal for equal ranks), backend, desc
    comm    collectives of one kind until the first step: op, group (name), size, n (calls), wire (operations on the wire), bytes, ns (time of
            the host in them), max (longest), async (calls that did not wait), late (after the first forward), end; where from: via (function
            of torch), site (file:line outside torch), user (file:line of the program), api (function of a package); more (places not told)
  written by processes that publish models, in journals of their own (`publishes/`):
    publish act (asked, began, stage or ended), id, place (the request's folder), name, checkpoint, ck (its identity), cpu (ns of the process so far), stage;
            at the end: outcome (published, superseded, failed), step, created (wall clock of the checkpoint), version, why, tries
  written by the supervisor or the launcher's agent:
    job     command, settings, labels
    begin   attempt (name of its folder), launch, pid
    gone    pid, rank: a rank's process ended at t; code where known
    signal  name: the supervisor got a signal and passed it on
    noticed the supervisor or agent acted on a failure
    end     attempt, code, signal, sent (signals passed on), oom (processes the kernel killed for memory), reason
    note    text: something a reader of the report should know
    bye     the supervisor leaves: what it did not end goes on without it
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, Protocol

SCHEMA: Final = 1
MAX_LINE: Final = 4096

Record = dict[str, Any]
"""A decoded journal line. The one place where untyped data crosses a layer; `account.assemble` makes it typed."""

BEAT_MAGIC: Final = 0x4554545F42454131  # "ETT_BEA1"
BEAT_SLOTS: Final = 512
(
    B_MAGIC,
    B_PID,
    B_STEP,
    B_STEP_T,
    B_ACTIVE_T,
    B_BATCHES,
    B_WAIT,
    B_BACKWARDS,
    B_OPTIMIZER_CALLS,
    B_SKIPPED,
    B_FAULTS,
    B_SAID,
    B_EVAL_T,
    B_LIMIT,
    B_TYPICAL,
    B_FIRST_STEP_T,
    B_DEPTH,
    B_STACK,
) = range(18)
"""Slots of the beat page, each an unsigned 64-bit integer: magic, process id, counted steps, end of the last one, last
sign of life, batches, short waits (ns), backward calls, optimizer calls, skipped steps, recorder faults, program's own step
+ 1, begin of a possible evaluation, silence limit (ns), typical step (ns), end of the first step, open stages, and from
B_STACK on (name code, begin) of each open stage, outermost first."""
MAX_DEPTH: Final = 32
FIRST_USER_CODE: Final = 1000

FOUND_NAMES: Final[tuple[str, ...]] = (
    "",
    "checkpoint_save",
    "checkpoint_load",
    "process_group_init",
    "device_init",
    "publish",
    "compile",
    "imports",
    "train_module_creation",
    "preproc_creation",
    "init_plugins",
    "pre_train",
    "get_first_batch_data",
    "evaluation",
    "teardown",
    "data_wait",
    "setup",
)
"""Name codes that need no `name` record. Append only: the numbers are part of the format."""


class Slots(Protocol):
    """The beat page's slots: memory-mapped, or in this process's memory only."""

    def __getitem__(self, slot: int, /) -> int:
        """Read one."""

    def __setitem__(self, slot: int, value: int, /) -> None:
        """Store one, in a single 8-byte write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """What a beat page says. Times are monotonic ns of the writer's boot; 0 = never."""

    pid: int
    step: int
    step_t: int
    active_t: int
    batches: int
    wait_ns: int
    backwards: int
    optimizer_calls: int
    skipped: int
    faults: int
    said: int
    eval_t: int
    limit_ns: int
    typical_ns: int
    first_step_t: int
    stack: tuple[tuple[int, int], ...]
    """(name code, begin) of the stages open, outermost first."""


def beat_from(slots: Slots) -> Beat:
    """The page's content as typed data."""
    depth = min(slots[B_DEPTH], MAX_DEPTH)
    stack = tuple((slots[B_STACK + 2 * i], slots[B_STACK + 2 * i + 1]) for i in range(depth))
    return Beat(
        pid=slots[B_PID],
        step=slots[B_STEP],
        step_t=slots[B_STEP_T],
        active_t=slots[B_ACTIVE_T],
        batches=slots[B_BATCHES],
        wait_ns=slots[B_WAIT],
        backwards=slots[B_BACKWARDS],
        optimizer_calls=slots[B_OPTIMIZER_CALLS],
        skipped=slots[B_SKIPPED],
        faults=slots[B_FAULTS],
        said=slots[B_SAID],
        eval_t=slots[B_EVAL_T],
        limit_ns=slots[B_LIMIT],
        typical_ns=slots[B_TYPICAL],
        first_step_t=slots[B_FIRST_STEP_T],
        stack=stack,
    )


def encode(record: Record) -> bytes:
    """One journal line, at most `MAX_LINE` bytes; what does not fit is cut from the longest text, what is no JSON becomes text."""
    line = json.dumps(record, separators=(",", ":"), default=_as_text).encode("utf-8", "replace") + b"\n"
    if len(line) <= MAX_LINE:
        return line
    return _encode_cut(record)


def _as_text(value: object) -> str:
    try:
        return str(value)[:512]
    except Exception:  # noqa: BLE001 - a foreign __str__ may raise anything; the guard's rule applies here as well
        return f"<{type(value).__name__}>"


def _encode_cut(record: Record) -> bytes:
    small: Record = {}
    for key, value in record.items():
        if isinstance(value, (int, float, bool, type(None))):
            small[key] = value
        else:
            text = value if isinstance(value, str) else json.dumps(value, default=_as_text)
            small[key] = text
    small["cut"] = True
    while True:
        line = json.dumps(small, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"
        if len(line) <= MAX_LINE:
            return line
        longest = max((key for key in small if isinstance(small[key], str)), key=lambda key: len(small[key]))
        excess = len(line) - MAX_LINE
        keep = max(0, min(len(small[longest]) // 2, len(small[longest]) - excess))
        small[longest] = small[longest][:keep]


def decode(line: bytes) -> Record | None:
    """The record in a complete journal line, or None where it is no JSON object with a kind."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if not isinstance(record, dict) or not isinstance(record.get("k"), str):
        return None
    return record


def decode_all(lines: list[bytes]) -> list[Record | None]:
    """`decode` of each line; one parse for all of them where all are well-formed, which is twice as fast."""
    try:
        records: list[Any] = json.loads(b"[" + b",".join(lines) + b"]")
    except ValueError:
        records = []
    if len(records) == len(lines) and all(type(record) is dict and type(record.get("k")) is str for record in records):
        return records
    return [decode(line) for line in lines]

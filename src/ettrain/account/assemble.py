"""Journal records of one process -> its `RankHistory`. Incremental: feed what is new, build as often as asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain, groupby, islice, repeat
from operator import itemgetter, le
from typing import Any

from ettrain import events as e
from ettrain.account.history import (
    NO_LIMIT,
    CacheUse,
    Comm,
    CommGroup,
    Compile,
    Dims,
    IdentityKey,
    Label,
    Load,
    PlannedStop,
    Progress,
    RaisedError,
    RankHistory,
    Said,
    Save,
    SaveInterval,
    Seen,
    Slow,
    Span,
    Tuning,
)
from ettrain.account.startruns import start_run_of
from ettrain.events import Beat, Record
from ettrain.tuned import tuned_from

_LABELS: dict[tuple[str, bool, str], Label] = {}


def label(stage: str, *, user: bool = False, part: str = "") -> Label:
    """The one `Label` of that content: many spans share few labels."""
    key = (stage, user, part)
    found = _LABELS.get(key)
    if found is None:
        found = _LABELS[key] = Label(stage, user, part)
    return found


def identity_keys(identity: Any) -> tuple[IdentityKey, ...]:
    """Keys of a checkpoint's recorded identity, strongest first: file state, content id, fingerprint, inode, path."""
    if not isinstance(identity, dict):
        return ()
    keys: list[IdentityKey] = []
    inode = identity.get("ino")
    pair = tuple(inode) if isinstance(inode, list) and len(inode) == 2 else None
    if pair and "mtime" in identity:
        keys.append(("stat", *pair, identity["mtime"], identity.get("size", -1)))
    keys.extend((kind, identity[kind]) for kind in ("sid", "fp") if identity.get(kind))
    if pair:
        keys.append(("ino", *pair))
    if identity.get("path"):
        keys.append(("path", str(identity["path"])))
    return tuple(keys)


class RankBuilder:
    """Collects one process's records. `offset` turns the host's monotonic ns into the job's clock."""

    def __init__(self, head: Record, offset: int) -> None:
        self.offset = offset
        self.unknown_kinds = 0
        self._names: dict[int, str] = {}
        self._saves: list[dict[str, Any]] = []
        self._commits: dict[int, tuple[int, bool, Any]] = {}
        t = _instant(head, "t")
        start = min(_natural(head.get("start")) or t, t)
        self._history = RankHistory(
            rank=_natural(head.get("rank")) if isinstance(head.get("rank"), int) else -1,
            world=_natural(head.get("world")),
            devices=_natural(head.get("devices")) or 1,
            pid=_natural(head.get("pid")),
            host=str(head.get("host") or ""),
            start=start + offset,
            entered=max(start, _natural(head.get("entered")) or start) + offset,
            end=0,
        )
        self._take: dict[str, Callable[[Record], None]] = {
            "span": self._span,
            "prog": self._prog,
            "recount": self._recount,
            "slow": self._slow,
            "cache": self._cache,
            "startup": self._startup,
            "mark": self._mark,
            "rank": self._rank,
            "name": self._name,
            "said": self._said,
            "commit": self._commit,
            "interval": self._interval,
            "stop": self._stop,
            "exc": self._exc,
            "exit": self._exit,
            "fault": self._fault,
            "dims": self._dims,
            "refused": self._refused,
            "tuned": self._tuned,
            "group": self._group,
            "comm": self._comm,
        }
        self._last_t = t + offset

    def feed(self, records: Iterable[Record]) -> None:
        """Take further records, in the journal's order. Unknown kinds are counted, incomplete records too."""
        for kind, run in groupby(records, key=itemgetter("k")):
            take = self._take.get(kind)
            if take is None:
                self.unknown_kinds += len(list(run)) if kind not in ("head", "clock", "note") else 0
                continue
            taken = list(run)
            if kind == "prog" and self._progs(taken):
                continue
            for record in taken:
                try:
                    take(record)
                except (KeyError, TypeError, ValueError):
                    self.unknown_kinds += 1

    def build(self, beat: Beat | None, *, end: int | None, now: int) -> RankHistory:
        """The history so far; feeding and building again is allowed.

        Args:
            beat: the process's beat page, where there is one.
            end: when the process ended (job clock); None = it is alive.
            now: the instant at which the reader looks (job clock).
        """
        mine = beat if beat is not None and beat.pid == self._history.pid else None
        history = replace(
            self._history,
            spans=list(self._history.spans),
            compiles=list(self._history.compiles),
            dims=list(self._history.dims),
            tunings=list(self._history.tunings),
            cache_uses=list(self._history.cache_uses),
            start_runs=list(self._history.start_runs),
            progress=list(self._history.progress),
            said=list(self._history.said),
            saves=[self._finished_save(save) for save in self._saves],
        )
        last = max(self._last_t, _apply_beat(history, mine, self.offset)) if mine else self._last_t
        history.alive = end is None
        history.end = max(now if end is None else end, history.start)
        history.active_t = min(last, history.end)
        if mine:
            self._apply_open(history, mine)
        return history

    def start(self) -> int:
        """Creation of the process (job clock)."""
        return self._history.start

    def exited(self) -> bool:
        """Whether the interpreter began to end in good order."""
        return self._history.exit_t is not None

    def ended_well(self) -> bool:
        """Whether it did so without an exception that left the program."""
        return self.exited() and self._history.error is None

    def shared_instants(self) -> list[tuple[int, int]]:
        """(step, instant) that every rank records alike: the ends of steps 1, 2, 4, 8, ..., after which synchronised ranks agree."""
        first: dict[int, int] = {}
        for progress in self._history.progress:
            if progress.step > 0 and progress.step & (progress.step - 1) == 0:
                first.setdefault(progress.step, progress.t)
        return list(first.items())

    def end_seen(self) -> int:
        """Last instant known of the process: its end, where nobody saw it."""
        return self._last_t

    # ---- records

    def _span(self, record: Record) -> None:
        start, end = self._time(record), self._time(record, "end")
        if end < start:
            raise ValueError(end)
        stage = str(record["name"])
        user = record.get("by") == "user"
        history = self._history
        span = Span(start, end, label(stage, user=user, part=str(record.get("part") or "")))
        main = not record.get("lane")
        if main and not (user and record.get("steps")):
            history.spans.append(span)
        else:
            history.background.append(span)
        if main and end > self._last_t:
            self._last_t = end
        if stage == "compile" and not user:
            history.compiles.append(compile_of(record, self.offset))
        elif stage == "checkpoint_save" and "save" in record:
            self._saves.append({**record, "t": start, "end": end, "step": _natural(record.get("step"))})
        elif stage == "checkpoint_load" and main:
            identity = identity_keys(record.get("id"))
            path = next((str(key[1]) for key in identity if key[0] == "path"), "")
            history.loads.append(Load(t=end, local_step=_natural(record.get("step")), identity=identity, path=path))

    def _prog(self, record: Record) -> None:
        t = self._time(record)
        history = self._history
        previous = history.progress[-1] if history.progress else None
        step = _natural(record["step"])
        if previous is None or (t >= previous.t and step >= previous.step):
            history.progress.append(Progress(t, step, _natural(record.get("wait"))))
            if step:
                history.steps, history.last_step_t = max(history.steps, step), max(t, history.last_step_t or t)
        history.limit_ns = _natural(record.get("limit")) or history.limit_ns
        self._last_t = max(self._last_t, t)

    def _progs(self, records: list[Record]) -> bool:
        """Take a run of progress records at once (most of a journal is such runs); False if they must be looked at one by one."""
        try:
            columns = list(zip(*map(itemgetter("t", "step", "wait", "limit"), records), strict=True))
        except KeyError:
            return False
        ts, steps, waits, limits = columns
        if set(map(type, chain(ts, steps, waits, limits))) != {int}:
            return False
        history = self._history
        progress, offset = history.progress, self.offset
        in_order = all(map(le, ts, islice(ts, 1, None))) and all(map(le, steps, islice(steps, 1, None)))
        follows = not progress or (ts[0] + offset >= progress[-1].t and steps[0] >= progress[-1].step)
        low, high = min(ts[0], steps[0], *waits, *limits), max(ts[-1], steps[-1], *waits, *limits)
        if not (in_order and follows and low >= 0 and high < NO_LIMIT):
            return False
        progress.extend(map(tuple.__new__, repeat(Progress), zip(map(offset.__add__, ts), steps, waits, strict=True)))
        last = ts[-1] + offset
        if steps[-1]:
            history.steps, history.last_step_t = max(history.steps, steps[-1]), max(last, history.last_step_t or last)
        history.limit_ns = next(filter(None, reversed(limits)), history.limit_ns)
        self._last_t = max(self._last_t, last)
        return True

    def _recount(self, record: Record) -> None:
        """What was counted so far were no steps: a better source of the count has turned up."""
        history = self._history
        history.progress.clear()
        history.slows.clear()
        history.said.clear()
        history.marks.pop("first_step", None)
        history.steps, history.first_step_t, history.last_step_t, history.limit_ns = 0, None, None, NO_LIMIT
        self._saves = [{**save, "step": 0} for save in self._saves]
        history.loads = [replace(load, local_step=0) for load in history.loads]

    def _slow(self, record: Record) -> None:
        start, end = self._time(record), self._time(record, "end")
        if end < start:
            raise ValueError(end)
        self._history.slows.append(Slow(start, end, _natural(record["typical"])))

    def _cache(self, record: Record) -> None:
        told = str(record["act"]), _natural(record.get("entries")), _natural(record.get("bytes")), str(record.get("reason") or "")
        self._history.cache_uses.append(CacheUse(self._time(record), self._time(record, "end"), *told))

    def _startup(self, record: Record) -> None:
        run = start_run_of(record, self.offset)
        runs = self._history.start_runs
        if _natural(record.get("first")) and runs and runs[-1].start == run.start:
            runs[-1] = runs[-1]._replace(stages=runs[-1].stages + run.stages)
        else:
            runs.append(run)

    def _mark(self, record: Record) -> None:
        t = self._time(record)
        name = str(record["name"])
        if name == "step_source":
            self._history.step_source = str(record.get("source", ""))
            return
        self._history.marks.setdefault(name, t)
        if name == "first_step":
            self._history.first_step_t = t
            self._history.steps = max(self._history.steps, 1)
            self._history.last_step_t = max(self._history.last_step_t or t, t)
        self._last_t = max(self._last_t, t)

    def _rank(self, record: Record) -> None:
        if isinstance(record.get("rank"), int):
            self._history.rank = _natural(record["rank"])
        if isinstance(record.get("world"), int):
            self._history.world = _natural(record["world"])

    def _name(self, record: Record) -> None:
        self._names[int(record["code"])] = str(record["name"])

    def _said(self, record: Record) -> None:
        self._history.said.append(Said(self._time(record), _natural(record["local"]), _natural(record["step"])))

    def _commit(self, record: Record) -> None:
        self._commits[_natural(record["save"])] = (self._time(record), bool(record.get("ok")), record.get("id"))

    def _interval(self, record: Record) -> None:
        seconds, steps = record.get("seconds"), _natural(record.get("steps")) or None
        interval_ns = int(seconds * 1e9) if isinstance(seconds, int | float) and 0 <= seconds < 1e9 else None
        told = self._time(record), str(record["every"]), interval_ns, steps, str(record.get("why") or "")
        self._history.save_interval = SaveInterval(*told)

    def _stop(self, record: Record) -> None:
        if self._history.planned_stop is None:
            self._history.planned_stop = PlannedStop(self._time(record), str(record["by"]))

    def _exc(self, record: Record) -> None:
        if record.get("how") != "thread" and self._history.error is None:
            self._history.error = RaisedError(
                self._time(record),
                str(record.get("type", "")),
                str(record.get("message", "")),
                str(record.get("trace", "")),
            )
            self._last_t = max(self._last_t, self._time(record))

    def _exit(self, record: Record) -> None:
        self._history.exit_t = self._time(record)
        self._last_t = max(self._last_t, self._history.exit_t)

    def _fault(self, record: Record) -> None:
        history = self._history
        history.faults = max(history.faults, _natural(record.get("count", 1)))
        history.fault_texts.append(f"{record.get('where', '?')}: {record.get('error', '?')}")

    def _group(self, record: Record) -> None:
        words = [str(record.get(key) or "") for key in ("ranks", "same", "backend", "desc")]
        self._history.groups.append(CommGroup(self._time(record), str(record["name"]), _natural(record["size"]), *words))

    def _comm(self, record: Record) -> None:
        size, n, wire, moved, ns, longest, asyncs = (
            _natural(record.get(key)) for key in ("size", "n", "wire", "bytes", "ns", "max", "async")
        )
        late, (via, site, user, api) = bool(record.get("late")), (str(record.get(key) or "") for key in ("via", "site", "user", "api"))
        start, end, op, group = self._time(record), self._time(record, "end"), str(record["op"]), str(record["group"])
        self._history.comms.append(Comm(start, end, op, group, size, n, wire, moved, ns, longest, asyncs, late, via, site, user, api))

    def _refused(self, record: Record) -> None:
        self._history.compiles.append(compile_of(record, self.offset))

    def _tuned(self, record: Record) -> None:
        start = self._time(record)
        end = self._time(record, "end") if "end" in record else start
        took_s = max(0, end - start) / 1e9
        tuned = tuned_from({"search_s": took_s, **record}, kind=str(record["kind"]))
        if tuned is None:
            raise ValueError(record)
        self._history.tunings.append(Tuning(start, end, tuned, str(record.get("state") or "searched"), str(record.get("reason") or "")))

    def _dims(self, record: Record) -> None:
        if "applied" in record:
            self._history.dynamic_sources = applied_of(record)
        else:
            self._history.dims.extend(dims_of(record, self.offset))

    def _time(self, record: Record, key: str = "t") -> int:
        return _instant(record, key) + self.offset

    # ---- what only the beat page knows

    def _apply_open(self, history: RankHistory, beat: Beat) -> None:
        """Stages that were open when the process ended, or are open now, last until then."""
        if history.exit_t is not None:
            return
        last_step = history.last_step_t or 0
        for code, begin in reversed(beat.stack):
            name = self._name_of(code)
            start = begin + self.offset
            user = code >= e.FIRST_USER_CODE
            if name and start <= history.end and not (user and start < last_step):
                history.open_stage = history.open_stage or name
                history.spans.append(Span(start, history.end, label(name, user=user)))
        eval_t = beat.eval_t + self.offset if beat.eval_t else 0
        if last_step < eval_t <= history.end:
            history.open_stage = history.open_stage or "evaluation"
            history.spans.append(Span(eval_t, history.end, label("evaluation")))

    def _name_of(self, code: int) -> str:
        if code < len(e.FOUND_NAMES):
            return e.FOUND_NAMES[code]
        return self._names.get(code, "")

    def _finished_save(self, save: dict[str, Any]) -> Save:
        durable: int | None = save["end"]
        identity = save.get("id")
        if save.get("err"):
            durable = None
        elif save.get("pending"):
            t, ok, committed = self._commits.get(_natural(save["save"]), (0, False, None))
            durable = t if ok else None
            identity = committed or identity
        return Save(
            snapshot=save["t"],
            durable=durable,
            local_step=save["step"],
            identity=identity_keys(identity),
            blocking_ns=0 if save.get("lane") else save["end"] - save["t"],
        )


def compile_of(record: Record, offset: int = 0) -> Compile:
    """The compilation that a span or a `refused` record tells.

    Raises:
        ValueError: its instants are none.
        KeyError: it has none.
    """
    start = _instant(record, "t") + offset
    end = _instant(record, "end") + offset if "end" in record else start
    part, where, reason, number = (str(record.get(key) or "") for key in ("part", "where", "reason", "compile_id"))
    hits, misses = _natural(record.get("hits")), _natural(record.get("misses"))
    return Compile(start, end, part, where, reason, hits, misses, number, record["k"] == "refused")


def applied_of(record: Record) -> str | None:
    """The dynamic sources that a `dims` record says were set; None where it does not say which."""
    applied = record["applied"]
    return applied if isinstance(applied, str) and not record.get("cut") else None


def dims_of(record: Record, offset: int = 0) -> list[Dims]:
    """What a `dims` record tells, one source at a time.

    Raises:
        TypeError: it is none.
        ValueError: its instant is none.
    """
    seen, was = record["seen"], record.get("was") or {}
    if not isinstance(seen, dict) or not isinstance(was, dict):
        raise TypeError(seen)
    t, function, where = _instant(record, "t") + offset, str(record.get("part") or ""), str(record.get("where") or "")
    told = [(source, _seen(value), _seen(was.get(source))) for source, value in seen.items()]
    return [Dims(t, function, where, source, now, before) for source, now, before in told if now is not None]


def _seen(value: Any) -> Seen | None:
    if isinstance(value, list):
        return tuple(size if isinstance(size, int) else None for size in value)
    return value if isinstance(value, str | int | float) else None


def _natural(value: Any) -> int:
    """A count as read from a file; 0 where it is none."""
    return value if isinstance(value, int) and 0 < value < NO_LIMIT else 0


def _instant(record: Record, key: str) -> int:
    """An instant as read from a file, monotonic ns.

    Raises:
        ValueError: it is none.
    """
    t = record[key]
    if not isinstance(t, int) or not 0 <= t < NO_LIMIT:
        raise ValueError(t)
    return t


def _apply_beat(history: RankHistory, beat: Beat, offset: int) -> int:
    """Bring the history up to the page; returns the last sign of life (job clock), 0 if the page knows none."""
    history.faults = max(history.faults, beat.faults)
    if beat.limit_ns:
        history.limit_ns = min(beat.limit_ns, NO_LIMIT)
    if beat.first_step_t and history.first_step_t is None:
        history.first_step_t = beat.first_step_t + offset
    if beat.step and beat.step >= history.steps:
        history.steps = beat.step
        t = beat.step_t + offset
        history.last_step_t = max(t, history.last_step_t or t)
        tail = history.progress[-1] if history.progress else Progress(0, 0, 0)
        if t >= tail.t and (beat.step, beat.wait_ns) != tail[1:]:
            history.progress.append(Progress(t, beat.step, max(beat.wait_ns, tail.wait_ns)))
    if beat.said and not history.said and history.steps <= 1:
        history.said.append(Said(history.entered, 0, max(0, beat.said - 1 - history.steps)))
    latest = max(beat.active_t, beat.step_t)
    return latest + offset if latest else 0

"""The collectives of the start: which operation, on which group, from where, how often, how many bytes, how long the host was in it.

Recorded from the import of torch until the first step (or backward pass, where no optimizer has stepped yet): every collective, object
collective and creation of a process group that goes through torch.distributed's functions, on any thread, and functional collectives
where they are called and not traced. An object collective counts once, with the wire operations beneath it. From then on the functions
are only passed through; they stay where they are, since dynamo knows some of them by identity. Not recorded: traffic below Python (save
what DDP and FSDP send when they are built, which has a hook of its own) and point-to-point.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from inspect import currentframe
from typing import Any, Final

from ettrain.record.guard import guard
from ettrain.record.hooks import private
from ettrain.record.hooks.callsite import CallSites
from ettrain.record.hooks.compiling import compilation
from ettrain.record.hooks.evaluation import evaluation
from ettrain.record.hooks.wrap import Args, Kwargs, wraps
from ettrain.record.recorder import now, recorder

MAX_ROWS: Final = 400
"""Kinds of calls told apart; what comes beyond is summed up by operation."""
MAX_CALLS: Final = 100_000
"""A process that never steps, e.g. one that serves, is not looked at for ever."""
MAX_GROUPS: Final = 400
MAX_RANKS_TEXT: Final = 1000

TENSORS: Final[dict[str, tuple[str, ...]]] = {
    "all_reduce": ("tensor",),
    "all_reduce_coalesced": ("tensors",),
    "broadcast": ("tensor",),
    "reduce": ("tensor",),
    "all_gather": ("tensor_list",),
    "all_gather_into_tensor": ("output_tensor",),
    "all_gather_single": ("output", "output_tensor"),
    "all_gather_coalesced": ("output_tensor_lists",),
    "gather": ("tensor", "gather_list"),
    "scatter": ("tensor", "scatter_list"),
    "reduce_scatter": ("input_list",),
    "reduce_scatter_tensor": ("input",),
    "reduce_scatter_single": ("input",),
    "all_to_all": ("output_tensor_list", "input_tensor_list"),
    "all_to_all_single": ("output", "input"),
    "barrier": (),
    "monitored_barrier": (),
}
"""Operation -> the arguments whose larger one is what it moves, as this rank sees it."""
OBJECTS: Final = ("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list")
GROUPS: Final = ("init_process_group", "new_group", "split_group")
FUNCTIONAL: Final[dict[str, tuple[str, ...]]] = {
    "broadcast": ("self",),
    "all_reduce": ("self",),
    "all_gather_single": ("self", "input"),
    "all_gather_tensor": ("self",),
    "reduce_scatter_single": ("self", "input"),
    "reduce_scatter_tensor": ("self",),
    "all_to_all_single": ("self",),
}
"""The functional collectives, by which DTensor redistributes; a gather's bytes are this rank's part times the group's size."""


class _Call:
    """An outermost call under way, to which the calls inside it are added."""

    __slots__ = ("bytes", "wire")

    def __init__(self) -> None:
        self.wire = self.bytes = 0


class _Here(threading.local):
    call: _Call | None = None


class Row:
    """Calls of one operation on one group from one place."""

    __slots__ = ("asyncs", "bytes", "end", "long", "n", "ns", "t", "wire")

    def __init__(self, t: int) -> None:
        self.t = self.end = t
        self.n = self.wire = self.bytes = self.ns = self.long = self.asyncs = 0


class Traffic:
    """What was seen so far. `on` is all that is looked at once the first step is done."""

    def __init__(self) -> None:
        self.here = _Here()
        self.module: Any = None
        self.sites: CallSites | None = None
        self.after: Callable[[], None] | None = None
        self.reset()

    def reset(self) -> None:
        """As new, in a forked child."""
        self.on = True
        self.here.call = None
        self.calls = 0
        self.rows: dict[tuple[Any, ...], Row] = {}
        self.groups: dict[str, int] = {}
        """Size of the groups described so far."""

    def watch(self, module: Any) -> None:
        """Take note of what torch.distributed's module does, until the first step or the end."""
        self.module = module
        self.sites = CallSites(os.path.dirname(os.path.dirname(os.path.abspath(module.__file__))))
        self.after, recorder.on_first_step = recorder.on_first_step, self._first_step
        recorder.at_finish.append(self.tell)
        recorder.at_fork.append(self.reset)

    def _first_step(self) -> None:
        try:
            self.tell()
        except Exception as error:  # noqa: BLE001 - the guard's rule
            guard.fault("collectives", error)
        if self.after is not None:
            self.after()

    def tell(self) -> None:
        """Write down what was seen, and look no more."""
        if not self.on:
            return
        self.on = False
        rows, self.rows = self.rows, {}
        for (op, group, late, place), row in list(rows.items()):
            record: dict[str, Any] = {"k": "comm", "t": row.t, "end": row.end, "op": op, "n": row.n, "wire": row.wire}
            record |= {"bytes": row.bytes, "ns": row.ns, "max": row.long, "group": group, "size": self.groups.get(group, 0)}
            if row.asyncs:
                record["async"] = row.asyncs
            if late:
                record["late"] = True
            recorder.emit(record | (place.texts() if place is not None else {"more": True}))

    def add(self, op: str, group: Any, begin: int, call: _Call, *, asynchronous: bool = False) -> None:
        """A call ended just now; `group` is torch's, None for the default one."""
        end = now()
        name = self.name_of(group)
        if not name and op not in GROUPS:
            return  # no member: nothing was sent
        place = self.sites.of(currentframe()) if self.sites is not None else None
        key = (op, name, evaluation.seen_forward, place)
        row = self.rows.get(key)
        if row is None:
            if len(self.rows) >= MAX_ROWS:
                key = (op, name if name in self.groups else "", evaluation.seen_forward, None)
            row = self.rows.setdefault(key, Row(begin))
        took = end - begin
        row.n += 1
        row.wire += call.wire
        row.bytes += call.bytes
        row.ns += took
        row.long = max(row.long, took)
        row.asyncs += asynchronous
        row.end = end
        self.calls += 1
        if self.calls >= MAX_CALLS:
            self.tell()

    def name_of(self, group: Any) -> str:
        """torch's name of a group, which is described when it is first seen."""
        if group is None:
            group = self.module.group.WORLD
        elif isinstance(group, str):
            return group
        name = getattr(group, "group_name", None)
        if not isinstance(name, str):
            return ""
        if name not in self.groups:
            self._describe(name, group)
        return name

    def _describe(self, name: str, group: Any) -> None:
        try:
            ranks, backend = sorted(self.module.get_process_group_ranks(group)), str(self.module.get_backend(group))
        except (KeyError, ValueError, RuntimeError):  # a group that torch did not make: only its size can be had
            self.groups[name] = group.size()
            return
        self.groups[name] = len(ranks)
        if len(self.groups) <= MAX_GROUPS:
            text, same = ranks_text(ranks)
            record = {"k": "group", "t": now(), "name": name, "size": len(ranks), "ranks": text, "same": same, "backend": backend}
            recorder.emit(record | {"desc": str(getattr(group, "group_desc", "") or "")[:100]})


traffic = Traffic()


def ranks_text(ranks: list[int]) -> tuple[str, str]:
    """Ranks in short, e.g. '0-7,16', cut if there are many stretches; and what equal sets of ranks share."""
    stretches: list[list[int]] = []
    for rank in ranks:
        if stretches and rank == stretches[-1][1] + 1:
            stretches[-1][1] = rank
        else:
            stretches.append([rank, rank])
    text = ",".join(f"{low}-{high}" if high > low else str(low) for low, high in stretches)
    if len(text) <= MAX_RANKS_TEXT:
        return text, text
    from hashlib import sha256

    return text[:MAX_RANKS_TEXT] + "…", sha256(text.encode()).hexdigest()[:16]


def bytes_of(value: Any) -> int:
    """Bytes of a tensor, or of a list of them; 0 for what has none."""
    if isinstance(value, (list, tuple)):
        return sum(map(bytes_of, value))
    size = getattr(value, "nbytes", 0)
    return size if type(size) is int else 0


def on_c10d(module: Any) -> None:
    """torch.distributed's functions. What this torch does not have is passed over."""
    private(module)
    for op in (*TENSORS, *OBJECTS, *GROUPS):
        function = getattr(module, op, None)
        if function is not None:
            setattr(module, op, _counted(function, _Arguments(function, op, TENSORS.get(op))))
    traffic.watch(module)


def on_functional(module: Any) -> None:
    """The functional collectives, where they are called and not traced."""
    for op, tensors in FUNCTIONAL.items():
        function = getattr(module, op, None)
        if function is not None:
            setattr(module, op, _counted(function, _Functional(function, op, tensors)))


def _counted(function: Callable[..., Any], read: _Arguments) -> Callable[..., Any]:
    """`function`, with each outermost call added to the traffic."""
    op = read.op
    creates = op in GROUPS
    here = traffic.here

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not traffic.on or compilation.begin:
            return function(*args, **kwargs)
        outer, mine = here.call, _Call()
        here.call = mine
        begin = now()
        done = False
        result = None
        try:
            result = function(*args, **kwargs)
            done = True
            return result
        finally:
            here.call = outer
            if done:
                try:
                    read.measure(mine, args, kwargs)
                    if outer is not None:
                        outer.wire += mine.wire
                        outer.bytes += mine.bytes
                    else:
                        group = read.created(result) if creates else read.group(args, kwargs)
                        traffic.add(op, group, begin, mine, asynchronous=not creates and result is not None and read.is_async(args, kwargs))
                except Exception as error:  # noqa: BLE001 - the guard's rule
                    guard.fault(op, error)

    wrapper._torchdynamo_inline = function  # type: ignore[attr-defined]
    return wrapper


class _Arguments:
    """Where one operation's arguments stand."""

    def __init__(self, function: Any, op: str, tensors: tuple[str, ...] | None) -> None:
        self.op = op
        while hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        places = {name: place for place, name in enumerate(names)}
        self.group_at = places.get("group", len(names))
        self.async_at = places.get("async_op", len(names))
        self.sends = tensors is not None
        self.tensors = [(places[name], name) for name in tensors or () if name in places]

    def measure(self, call: _Call, args: Args, kwargs: Kwargs) -> None:
        """What the call itself put on the wire. A collective that is another one by an older name counts once."""
        if not self.sends:
            return
        call.wire = max(call.wire, 1)
        for place, name in self.tensors:
            value = args[place] if len(args) > place else kwargs.get(name)
            call.bytes = max(call.bytes, bytes_of(value))

    def group(self, args: Args, kwargs: Kwargs) -> Any:
        """The call's group, None for the default one."""
        return args[self.group_at] if len(args) > self.group_at else kwargs.get("group")

    def created(self, result: Any) -> Any:
        """The group that a creation made, '' for one that this rank is no member of."""
        if self.op == "init_process_group":
            return None
        return result if hasattr(result, "group_name") else ""

    def is_async(self, args: Args, kwargs: Kwargs) -> bool:
        """Whether the call returned before the traffic was done."""
        return bool(args[self.async_at] if len(args) > self.async_at else kwargs.get("async_op"))


class _Functional(_Arguments):
    """A functional collective: its group comes in many forms, and its result is always waited for later."""

    def measure(self, call: _Call, args: Args, kwargs: Kwargs) -> None:
        """A gather's result is as often as large as what this rank gives."""
        super().measure(call, args, kwargs)
        if self.op.startswith("all_gather"):
            size = getattr(self.group(args, kwargs), "size", None)
            call.bytes *= size() if callable(size) else 1

    def group(self, args: Args, kwargs: Kwargs) -> Any:
        """The call's group: a group, its name, a mesh of one dimension, or (mesh, dimension)."""
        group = super().group(args, kwargs)
        mesh, dim = group if isinstance(group, tuple) else (group, None)
        return mesh.get_group(dim) if hasattr(mesh, "get_group") else group

    def is_async(self, args: Args, kwargs: Kwargs) -> bool:
        """Always."""
        return True


def on_distributed_utils(module: Any) -> None:
    """What DDP and FSDP send from C++ when they are built: the parameters' shapes, then parameters and buffers in buckets."""
    found = private(module)
    if found is None:
        return
    for name, op in (("_verify_param_shape_across_processes", "verify_params"), ("_sync_params_and_buffers", "broadcast_coalesced")):
        setattr(module, name, _sent(found[name], op))


def _sent(run: Callable[..., Any], op: str) -> Callable[..., Any]:
    """`run(process_group, tensors, ...)` as an operation."""

    @wraps(run)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not traffic.on or compilation.begin:
            return run(*args, **kwargs)
        group = args[0] if args else kwargs.get("process_group")
        tensors = args[1] if len(args) > 1 else kwargs.get("tensors", kwargs.get("module_states"))
        numbered = _number_of(group)
        begin = now()
        result = run(*args, **kwargs)
        try:
            if tensors:
                call = _Call()
                call.wire = max(_number_of(group) - numbered, 0) or _wires(op, tensors)
                call.bytes = bytes_of(tensors) if op == "broadcast_coalesced" else 0
                traffic.add(op, group, begin, call)
        except Exception as error:  # noqa: BLE001 - the guard's rule
            guard.fault(op, error)
        return result

    return wrapper


def _number_of(group: Any) -> int:
    """How many collectives the group has begun, as far as its backend counts them."""
    try:
        return int(group._get_sequence_number_for_group())
    except Exception:  # noqa: BLE001 - a backend need not count, then the number is derived
        return 0


def _wires(op: str, tensors: Any) -> int:
    """The number derived: sizes and shapes; or one broadcast per type, as long as they fit one bucket of 250 MiB."""
    if op == "verify_params":
        return 2
    return len({(tensor.dtype, tensor.device) for tensor in tensors})

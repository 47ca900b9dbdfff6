"""The checkpoint a model is made from: waited for, verified, and read into the model tensor by tensor. No process group is made.

Not here: what is made of the model.
"""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from ettrain import clock
from ettrain.boost.checkpoint import pieces, reading
from ettrain.boost.checkpoint.folder import CheckpointFolder, parse
from ettrain.boost.publish.request import Request
from ettrain.errors import CheckpointInvalidError, UsageError

_POLL_S: Final = 0.5
_FILLS: Final = frozenset({"uniform_", "normal_", "zero_", "fill_", "trunc_normal_", "bernoulli_", "exponential_"})
_SHOWN: Final = 4
_STEP: Final = re.compile(r"step[-_=]?(\d+)(?:\.\w+)?$", re.IGNORECASE)
"""How a folder or file that is not ours may tell its step."""


class Held(NamedTuple):
    """A tensor in a checkpoint."""

    size: tuple[int, ...]
    bytes: int
    beside: int
    """Bytes that reading it takes beside the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A checkpoint found whole."""

    where: str
    tensors: Mapping[str, Held]
    objects: frozenset[str]
    """Names of what is no tensor."""
    read: Callable[[dict[str, Any]], None]
    """Fills the tensors of a state in place, and replaces other values."""
    told: dict[str, Any] = field(default_factory=dict)
    """For the published manifest: address, step, created_ns, position, ..."""
    verified: str = ""
    """How it was checked, in words."""


@contextmanager
def opened(request: Request) -> Iterator[Source]:
    """The request's checkpoint, once it is finished; kept from retention while the block lasts.

    Raises:
        CheckpointInvalidError: it is damaged, unsafe, or did not come in time.
    """
    until = clock.monotonic_ns() + int(request.wait_s * 1e9)
    address, _, name = request.checkpoint.rstrip("/").rpartition("/")
    if parse(name) is None:
        while not _begun(request.checkpoint) and clock.monotonic_ns() < until:
            clock.sleep_s(_POLL_S)
        yield _file(request) if os.path.isfile(request.checkpoint) else _plain(request)
        return
    folder = CheckpointFolder(address)
    _wait(folder, name, until)
    with folder.reading(name) as manifest:
        verdict = folder.verify(name)
        if not verdict.ok:
            raise CheckpointInvalidError(request.checkpoint, verdict.why)
        told: dict[str, Any] = {
            "address": request.checkpoint,
            "step": manifest.step,
            "created_ns": manifest.created_ns,
            "world": manifest.world,
        }
        told |= {"job": manifest.job, "attempt": manifest.attempt, "position": dict(manifest.position), "metrics": dict(manifest.metrics)}
        told["versions"] = dict(manifest.versions)
        yield _of_dcp(reading.reader_of(folder.path(name)), told, f"checksums of {len(manifest.files)} files")


def _of_dcp(reader: Any, told: dict[str, Any], verified: str) -> Source:
    tensors: dict[str, Held] = {}
    objects: set[str] = set()
    for name, one in reader.metadata().state_dict_metadata.items():
        if getattr(one, "properties", None) is None:
            objects.add(name)
            continue
        tensors[name] = Held(tuple(one.size), one.properties.dtype.itemsize * prod(one.size), 0)

    def read(state: dict[str, Any]) -> None:
        rest = pieces.fill(state, reader)
        if rest:
            reading.load(rest, reader, no_dist=True)
            state.update(rest)

    return Source(where=str(reader.path), tensors=tensors, objects=frozenset(objects), told=told, verified=verified, read=read)


def _wait(folder: CheckpointFolder, name: str, until: int) -> None:
    """Until the save is over; its own process may still write it."""
    while True:
        found = next((one for one in folder.found() if one.name == name), None)
        if found is not None and found.state != "unfinished":
            return
        if clock.monotonic_ns() >= until:
            why = found.why if found is not None else "is not there"
            raise CheckpointInvalidError(folder.path(name), f"{why}, and it did not come in time")
        clock.sleep_s(_POLL_S)


def _told(request: Request) -> dict[str, Any]:
    """What is known of a checkpoint that has no manifest."""
    step = _STEP.search(request.checkpoint.rstrip("/"))
    return {"address": request.checkpoint, "step": request.step if request.step is not None else int(step[1]) if step is not None else None}


def _plain(request: Request) -> Source:
    """A checkpoint that DCP wrote by itself: its metadata is written last, and everything it names must be there."""
    reader = reading.reader_of(request.checkpoint)
    pieces = len(reader.metadata().storage_data)
    return _of_dcp(reader, _told(request), f"sizes and places of {pieces} pieces; it has no checksums")


def _file(request: Request) -> Source:
    """A file of `torch.save`: mapped into memory, so that only what is read is there, and let go by the kernel as it likes."""
    try:
        state = torch.load(request.checkpoint, map_location="cpu", weights_only=True, mmap=True)
    except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError, OSError) as error:
        raise CheckpointInvalidError(
            request.checkpoint, f"cannot be read as a file of torch.save without running code of its ({' '.join(str(error).split())[:200]})"
        ) from None
    flat = dict(_flat(state, ""))
    tensors = {name: one for name, one in flat.items() if isinstance(one, torch.Tensor)}

    def read(wanted: dict[str, Any]) -> None:
        for name, one in wanted.items():
            if isinstance(one, torch.Tensor):
                one.copy_(tensors[name])
            else:
                wanted[name] = flat[name]

    whole = os.path.getsize(request.checkpoint)  # a private mapping counts as data, whether or not it is read
    held = {name: Held(tuple(one.shape), one.numel() * one.element_size(), whole) for name, one in tensors.items()}
    return Source(
        where=request.checkpoint, tensors=held, objects=frozenset(flat.keys() - tensors.keys()), read=read, told=_told(request),
        verified="it could be read; it has no checksums",
    )  # fmt: skip


def _flat(state: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Names as DCP would give them: `model.top.weight`."""
    for key, value in state.items() if isinstance(state, Mapping) else ():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}.")
        else:
            yield name, value


def _begun(address: str) -> bool:
    """Whether there is anything to judge: a file, the metadata, or that of single ranks, which nothing will complete."""
    if "://" in address or os.path.isfile(address):
        return True
    try:
        return any(name.endswith(".metadata") for name in os.listdir(address))
    except OSError:
        return False


def prefix_of(source: Source, names: list[str], given: str | None) -> str:
    """What stands before the model's own names in the checkpoint: `model.`, or nothing, or what else fits.

    Raises:
        CheckpointInvalidError: no prefix fits all names; says which are missing.
    """
    there = {*source.tensors, *source.objects}
    if not names:
        raise UsageError("model: has no parameters or buffers: what its function returns is not what was trained.")
    ends = [key[: -len(names[0])] for key in there if key.endswith(names[0])]
    for prefix in [given] if given is not None else dict.fromkeys(["model.", "", *sorted(ends, key=len)]):
        if all(prefix + name in there for name in names):
            return prefix
    tried = given if given is not None else min(ends, key=len, default="model.")
    missing = [tried + name for name in names if tried + name not in there]
    more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    known = ", ".join(sorted(there)[:_SHOWN])
    raise CheckpointInvalidError(
        source.where,
        f"it lacks {', '.join(missing[:_SHOWN])}{more} of the model's {len(names)} tensors. It has {known}, ... : is the model built as it was trained?",
    )


class _Unfilled(TorchFunctionMode):  # type: ignore[misc]
    """Parameters are made without being filled, since each is read from the checkpoint. Everything else is as it is built."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        filled = args[0] if args else kwargs.get("tensor")
        name = getattr(func, "__name__", "")
        fills = name in _FILLS or (name.endswith("_") and getattr(func, "__module__", "") == "torch.nn.init")
        if fills and isinstance(filled, torch.nn.Parameter):
            return filled
        return func(*args, **kwargs)


def built(factory: Any, arguments: Mapping[str, Any]) -> torch.nn.Module:
    """The model, on the CPU and for inference, its parameters not yet filled.

    Raises:
        UsageError: the function does not make one.
    """
    with torch.device("cpu"), _Unfilled():
        model = factory(**arguments)
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"model: {factory} returned a {type(model).__name__}, not a torch.nn.Module.")
    elsewhere = next((name for name, one in model.state_dict().items() if isinstance(one, torch.Tensor) and one.device.type != "cpu"), None)
    if elsewhere is not None:
        raise UsageError(f"model: {elsewhere} is not on the CPU: the publisher has no other device. Let the function build it without one.")
    return model.requires_grad_(requires_grad=False).eval()


def sizes_of(source: Source, prefix: str = "") -> tuple[int, int]:
    """(bytes of all tensors under a prefix, bytes that reading them takes beside): what reading needs at once is both together."""
    held = [one for name, one in source.tensors.items() if name.startswith(prefix)]
    return sum(one.bytes for one in held), max((one.beside for one in held), default=0)


def fill(model: torch.nn.Module, source: Source, prefix: str) -> int:
    """Read the model's tensors from the checkpoint, in place; returns their bytes.

    Raises:
        CheckpointInvalidError: a tensor has another shape there, or cannot be read.
    """
    state = model.state_dict()
    tensors = {name: one for name, one in state.items() if isinstance(one, torch.Tensor)}
    for name, tensor in tensors.items():
        there = source.tensors.get(prefix + name)
        if there is None or there.size != tuple(tensor.shape):
            shape = "is no tensor there" if there is None else f"has shape {list(there.size)}"
            raise CheckpointInvalidError(
                source.where, f"{prefix}{name} {shape}, the model's has {list(tensor.shape)}: it is built otherwise than it was trained"
            )
    wanted: dict[str, Any] = {prefix + name: one for name, one in state.items()}
    source.read(wanted)
    if len(tensors) < len(state):  # a module keeps something of its own that is no tensor
        model.load_state_dict({name: wanted[prefix + name] for name in state})
    return sum(one.numel() * one.element_size() for one in tensors.values())

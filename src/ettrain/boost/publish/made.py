"""One passage from a checkpoint to a folder that can be published: read, build, fill, export, verify. Knows no retries and no locks.

What was exported is kept until it is published, so that a publisher that was killed later need not export again.
"""

from __future__ import annotations

import gc
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from ettrain import clock
from ettrain._version import VERSION
from ettrain.boost.publish import exports, source
from ettrain.boost.publish.bill import peak_bytes
from ettrain.boost.publish.named import resolve
from ettrain.boost.publish.request import Request
from ettrain.boost.publish.target import Place, contents, write_whole
from ettrain.boost.publish.tensors import Difference, Recorded, answer, difference, plain, unpack
from ettrain.errors import EttrainError, UsageError

Stage = Callable[[str], None]
_KEPT: Final = "exported.json"
_OUTPUTS: Final = "outputs.pt"
"""What the model read from the checkpoint answers, where the training model's answer was not recorded."""


class NotVerifiedError(EttrainError):
    """What was made answers otherwise than the training model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A folder ready to be published, and its manifest without what only publishing knows."""

    folder: Path
    told: dict[str, Any]


def prepare(request: Request, place: Place, stage: Stage) -> Made:
    """Make the model.

    Args:
        request: what is asked.
        place: its folder.
        stage: told what begins.

    Raises:
        NotVerifiedError: its outputs are not the training model's.
        CheckpointInvalidError: the checkpoint cannot be used.
        UsageError: the request cannot be obeyed: its function, its export, its memory.
    """
    stage("checkpoint")
    with source.opened(request) as found:
        recorded = unpack(place.batch)
        told = _kept(place)
        runner = None
        if told is None:
            told, runner = _export(request, place, found, recorded, stage)
            gc.collect()  # the model is in circles of references; what was exported is read back now
    folder = place.work / "out"
    stage("verify")
    if runner is None and isinstance(request.export, str):
        runner = exports.kind_of(request).load(folder)
    try:
        told["verification"] |= _verified(request, recorded, runner, place)
    except NotVerifiedError:
        forget(place)  # what is wrong with it may be mended meanwhile
        raise
    told["peak_bytes"] = max(peak_bytes(), told.get("peak_bytes", 0))
    return Made(folder=folder, told=told)


def _export(request: Request, place: Place, found: source.Source, recorded: Recorded, stage: Stage) -> tuple[dict[str, Any], Any]:
    """(what the manifest will say, how to run what was made)."""
    _check_memory(request, found)
    took: dict[str, float] = {}
    timed = _Timed(took, stage)
    timed("build")
    model = source.built(resolve(request.model, "model"), request.arguments)
    prefix = source.prefix_of(found, list(model.state_dict()), request.prefix)
    timed("load")
    size = source.fill(model, found, prefix)
    timed("check")
    outputs = answer(model, recorded)
    checked = _checked(request, recorded, outputs)
    if recorded.outputs is None:
        place.work.mkdir(exist_ok=True)
        torch.save(plain(outputs, "outputs"), place.work / _OUTPUTS)
    timed("export")
    folder = place.work / "out"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    detail, runner = exports.make(request, model, recorded, folder)
    timed("")
    told = {
        "checkpoint": {**found.told, "verified": found.verified, "prefix": prefix}, "model": str(request.model), "arguments": dict(request.arguments),
        "export": {"kind": request.kind, **detail}, "model_bytes": size, "files": contents(folder), "seconds": took,
        "verification": checked, "versions": {"torch": torch.__version__, "ettrain": VERSION}, "peak_bytes": peak_bytes(),
    }  # fmt: skip
    if isinstance(request.export, str):  # what the user's function returned to run cannot be kept
        write_whole(place.work / _KEPT, json.dumps(told).encode())
    return told, runner


class _Timed:
    """Tells of each stage, and measures it."""

    def __init__(self, took: dict[str, float], stage: Stage) -> None:
        self._took, self._stage = took, stage
        self._name, self._begin = "", 0

    def __call__(self, name: str) -> None:
        now = clock.monotonic_ns()
        if self._name:
            self._took[self._name] = round((now - self._begin) / 1e9, 3)
        self._name, self._begin = name, now
        if name:
            self._stage(name)


def _kept(place: Place) -> dict[str, Any] | None:
    """What an earlier passage exported, where every file of it is as it was."""
    try:
        told: dict[str, Any] = json.loads((place.work / _KEPT).read_bytes())
        return told if told["files"] and contents(place.work / "out") == told["files"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def forget(place: Place) -> None:
    """Throw away what was exported."""
    shutil.rmtree(place.work, ignore_errors=True)


# ---- memory


def _check_memory(request: Request, found: source.Source) -> None:
    """Refuse before anything is built what cannot fit.

    Raises:
        UsageError: it needs more than was said.
    """
    if request.memory_bytes is None:
        return
    size, beside = source.sizes_of(found, request.prefix or "model.")
    if not size:
        size, beside = source.sizes_of(found, request.prefix or "")
    times, more = exports.kind_of(request).memory
    needed = peak_bytes() + max(size + beside, int(size * times)) + int(more)
    if needed > request.memory_bytes:
        raise UsageError(
            f"memory={_mib(request.memory_bytes)}: export={request.kind!r} of a model of {_mib(size)} needs about {_mib(needed)}. "
            f"Say memory={_mib(needed)!r}, or choose another export."
        )


def _mib(size: int) -> str:
    return f"{-(-size // (1 << 20))}MiB"


# ---- verification


def _tolerance(request: Request, recorded: Recorded) -> tuple[float, float]:
    own = exports.kind_of(request).tolerance
    half = any(one.dtype in (torch.float16, torch.bfloat16) for one in _tensors(recorded.outputs))
    return request.tolerance or ((max(own[0], exports.HALF[0]), max(own[1], exports.HALF[1])) if half else own)


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for one in inside for tensor in _tensors(one)]


def _checked(request: Request, recorded: Recorded, outputs: Any) -> dict[str, Any]:
    """Whether the model as read from the checkpoint answers as the training model did: tells a wrong model from a bad export."""
    if recorded.outputs is None:
        return {"against": "the model read from the checkpoint; the training model's outputs were not recorded"}
    own = exports.OWN.tolerance
    allowed = tuple(max(pair) for pair in zip(_tolerance(request, recorded), own, strict=True))
    gap = difference(outputs, recorded.outputs, (allowed[0], allowed[1]))
    _refuse(gap, (allowed[0], allowed[1]), "the model built by its function and filled from the checkpoint")
    return {"against": "the training model's recorded outputs", "worst_before_export": gap.worst}


def _verified(request: Request, recorded: Recorded, runner: Any, place: Place) -> dict[str, Any]:
    if runner is None:
        return {"exported": False, "why": "the export's function returned nothing to run"}
    expected = recorded.outputs
    if expected is None:
        expected = torch.load(place.work / _OUTPUTS, map_location="cpu", weights_only=True)
    tolerance = _tolerance(request, recorded)
    gap = difference(answer(runner, recorded), expected, tolerance)
    _refuse(gap, tolerance, f"the exported model ({request.kind})")
    return {"exported": True, "worst": gap.worst, "largest_output": gap.scale, "absolute": tolerance[0], "relative": tolerance[1]}


def _refuse(gap: Difference, tolerance: tuple[float, float], what: str) -> None:
    if gap.why:
        raise NotVerifiedError(f"{what} answers otherwise than the training model on the recorded batch: {gap.why}")
    if gap.beyond > 0:
        raise NotVerifiedError(
            f"{what} answers otherwise than the training model on the recorded batch: largest difference {gap.worst:.3g} "
            f"(largest output {gap.scale:.3g}; allowed is {tolerance[0]:g} + {tolerance[1]:g} x |output|). Was the model in eval mode when its outputs were recorded?"
        )


def manifest_of(request: Request, made: Made, version: str, more: dict[str, Any]) -> bytes:
    """The published version's manifest."""
    told = {
        "schema": 1, "id": request.id, "name": request.name, "version": version, "asked_ns": request.asked_ns, "metrics": {name: value if math.isfinite(value) else None for name, value in request.metrics.items()},
        "trained_with": dict(request.versions), "job": request.job, "attempt": request.attempt, **made.told, **more,
    }  # fmt: skip
    return (json.dumps(told, indent=1, sort_keys=True) + "\n").encode()

"""`ett.publish`: the training job ends with its checkpoint, and another process, without devices, makes the inference model of it.

Not here: that process (`work`).
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypedDict, Unpack

import torch

from ettrain import clock
from ettrain._version import VERSION
from ettrain.boost.checkpoint.folder import CheckpointFolder, parse
from ettrain.boost.checkpoint.metadata import NAME as METADATA
from ettrain.boost.publish import launch, progress, tensors
from ettrain.boost.publish.bill import Bill
from ettrain.boost.publish.named import Named, name_of
from ettrain.boost.publish.progress import Status, status_of
from ettrain.boost.publish.request import KINDS, Request
from ettrain.boost.publish.target import NAME, Place, Target, ask
from ettrain.errors import UsageError
from ettrain.record.api import stage
from ettrain.record.hooks.identity import identity_of
from ettrain.settings import ENV_ATTEMPT, ENV_JOB_DIR

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)
_POWERS: Final = " KMGT"
_POLL_S: Final = 0.2


class Publication:
    """A model that was asked for.

    Attributes:
        id: for `ett publish show|wait|retry`.
        folder: the request's; its log is `log.txt` there.
        new: whether it had not been asked for before.
    """

    def __init__(self, place: Place, request: Request, *, new: bool) -> None:
        self._place = place
        self.request = request
        self.id = request.id
        self.folder = place.root
        self.new = new

    def __repr__(self) -> str:
        return f"<Publication {self.id}: {self.status.state}>"

    @property
    def status(self) -> Status:
        """What has become of it, as far as this host can tell."""
        return status_of(self._place)

    @property
    def current(self) -> Path:
        """Where the model is once it is published: the same path for all its versions."""
        return Target(self.request.to, self.request.name).current

    def wait(self, seconds: float = 3600.0) -> Status:
        """Wait until it is published, has failed, or that long. For programs that hold no devices: else `ett publish wait`."""
        until = clock.monotonic_ns() + int(seconds * 1e9)
        while (status := self.status).state not in progress.OVER and clock.monotonic_ns() < until:
            clock.sleep_s(_POLL_S)
        return status


class Limits(TypedDict, total=False):
    """What a publisher may take."""

    memory: str | int | None
    """E.g. '2GiB'; what cannot fit is refused."""
    tolerance: tuple[float, float] | None
    """(absolute, relative) allowed difference of outputs; None = the export's own."""
    tries: int
    """How often at most it is tried; 3."""
    wait_s: float
    """How long the checkpoint may take to be finished, seconds; 600."""


def publish(
    checkpoint: str | os.PathLike[str],
    *,
    to: str | os.PathLike[str],
    model: str | Callable[..., Any],
    batch: Any,
    arguments: Mapping[str, Any] | None = None,
    reference: Any = None,
    export: str | Callable[..., Any] = "export",
    name: str = "model",
    step: int | None = None,
    prefix: str | None = None,
    metrics: Mapping[str, float] | None = None,
    where: str = "process",
    resources: Mapping[str, Any] | None = None,
    **limits: Unpack[Limits],
) -> Publication | None:
    """Have the inference model made from a checkpoint by a process without devices, and return at once.

    Call it last, on every rank or on one; only the first rank asks. Asking for the same again does nothing new.

    Args:
        checkpoint: folder or address of a checkpoint, which may still be being written; a folder of them: the newest; a file of `torch.save`.
        to: folder of published models; the model will be at `to/name/current`.
        model: function or class that builds the model as it was trained, on the CPU; or its name, 'module:function'.
        batch: what the model is verified on: a tensor, a tuple of arguments, or a dict of named ones.
        arguments: what `model` is called with, by name: numbers, texts, lists and dicts of them.
        reference: the training model's outputs for `batch`, or that model, where it is whole on this rank; without, only the export is verified.
        export: 'export' (torch.export), 'aoti' (AOTInductor package), 'int8', or a function (model, folder, batch): docs/publish.md.
        name: the model's.
        step: the checkpoint's, where it does not tell.
        prefix: what stands before the model's keys in the checkpoint; None = found, e.g. 'model.'.
        metrics: numbers for the published manifest.
        where: 'process' (detached, on this host), 'slurm' (a job of its own), 'k8s' (a Job's manifest is written).
        resources: for Slurm (partition, cpus_per_task, ...) and Kubernetes (image, volumes, volume_mounts, namespace, env, cpu).
        limits: memory, tolerance, tries, wait_s: `Limits`.

    Returns:
        The publication; None on ranks that are not the first.

    Raises:
        UsageError: an argument cannot be obeyed; says which and what to do.
    """
    if not _is_first():
        return None
    _check(name, where, export, to)
    packed = tensors.pack(batch, _outputs(reference, batch))
    request = Request(
        name=name, to=str(Path(to).absolute()), checkpoint=_address(checkpoint), digest=hashlib.sha256(packed).hexdigest(), step=step, where=where,
        model=name_of(model, "model"), arguments=_json(arguments or {}, "arguments"), export=_export(export), prefix=prefix,
        metrics={key: float(one) for key, one in (metrics or {}).items()}, resources=_json(resources or {}, "resources"), **_limits(limits),
    )  # fmt: skip
    return _ask(_from_here(request), packed)


def _limits(limits: Limits) -> dict[str, Any]:
    unknown = sorted(limits.keys() - Limits.__annotations__.keys())
    if unknown:
        raise TypeError(f"publish() got an unexpected keyword argument {unknown[0]!r}")
    tolerance, tries = limits.get("tolerance"), limits.get("tries", 3)
    if tries < 1:
        raise UsageError(f"tries={tries}: must be at least 1.")
    pair = None if tolerance is None else (float(tolerance[0]), float(tolerance[1]))
    return {"memory_bytes": _bytes(limits.get("memory")), "tolerance": pair, "tries": tries, "wait_s": float(limits.get("wait_s", 600.0))}


def _export(export: str | Callable[..., Any]) -> str | Named:
    return export if isinstance(export, str) and export in KINDS else name_of(export, "export")


def _from_here(request: Request) -> Request:
    """The same, with what the publisher needs to know of this process."""
    return replace(
        request, asked_ns=clock.wall_pair()[0], job=os.environ.get(ENV_JOB_DIR, ""), attempt=os.environ.get(ENV_ATTEMPT, ""), python=sys.executable,
        paths=_paths(), cwd=_folder(), versions={"torch": torch.__version__, "ettrain": VERSION, "python": platform.python_version()},
    )  # fmt: skip


def _ask(request: Request, packed: bytes) -> Publication:
    if request.where == "k8s":
        launch.kubernetes_job(Place(Path(request.to)), request)  # what is wrong with it is said before anything is written
    with stage("publish"):
        return _asked(request, packed)


def _asked(request: Request, packed: bytes) -> Publication:
    try:
        place, new = ask(Target(request.to, request.name), request, packed)
    except OSError as error:
        raise UsageError(f"to={request.to}: the request cannot be written: {error.strerror or error}.") from error
    publication = Publication(place, request, new=new)
    state = publication.status.state
    if not new and state not in (progress.FAILED, progress.INTERRUPTED):
        _tell(f"{request.id} was asked for before: {state}")
        return publication
    bill = Bill(request, place.root, "asker")
    bill.write("asked", where=request.where, ck=_identity(request.checkpoint))
    bill.close()
    told = launch.start(place, request)
    _tell(f"publishing {request.id}: {told}  (ett publish show {place.root})")
    return publication


def _identity(checkpoint: str) -> dict[str, Any]:
    """By what the job's journal knows the checkpoint: its path, what it consists of."""
    return {} if "://" in checkpoint else identity_of(checkpoint)


def _tell(line: str) -> None:
    sys.stderr.write(f"ettrain: {line}\n")


def _check(name: str, where: str, export: object, to: object) -> None:
    if not NAME.fullmatch(name):
        raise UsageError(f"name={name!r}: use letters, digits, '.', '_' and '-', beginning with a letter or digit, at most 64.")
    if where not in launch.WAYS:
        raise UsageError(f"where={where!r}: choose one of {', '.join(launch.WAYS)}.")
    if isinstance(export, str) and export not in KINDS and ":" not in export:
        raise UsageError(f"export={export!r}: choose one of {', '.join(KINDS)}, or a function, or its name 'module:function'.")
    if "://" in str(to):
        raise UsageError(f"to={to}: is an address. Publish to a folder, which other machines may mount.")


def _address(checkpoint: object) -> str:
    try:
        text = os.fspath(checkpoint)  # type: ignore[call-overload]
    except TypeError:
        raise UsageError(f"checkpoint: give the folder or address of one checkpoint, not a {type(checkpoint).__name__}.") from None
    text = str(text) if "://" in text else os.path.abspath(text)
    name = text.rstrip("/").rpartition("/")[2]
    if parse(name) is not None or os.path.exists(os.path.join(text, METADATA)) or os.path.isfile(text):
        return text
    newest = next(CheckpointFolder(text).newest(), None)  # a folder of checkpoints: the newest one
    return text if newest is None else CheckpointFolder(text).path(newest.name)


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # somebody removed it
        return ""


def _json(values: Mapping[str, Any], role: str) -> dict[str, Any]:
    try:
        told: dict[str, Any] = json.loads(json.dumps(dict(values)))
    except (TypeError, ValueError) as error:
        raise UsageError(f"{role}: must be numbers, texts, and lists and dicts of them: {error}.") from None
    return told


def _outputs(reference: Any, batch: Any) -> Any:
    """The outputs given, or those of the model given."""
    if not isinstance(reference, torch.nn.Module):
        return reference
    model = reference.module if isinstance(reference, torch.nn.parallel.DistributedDataParallel) else reference
    if any(hasattr(one, "device_mesh") for one in model.parameters()):
        raise UsageError(
            "reference: the model is sharded over ranks. Give its outputs instead: with torch.no_grad(): model(*batch), on all ranks."
        )
    was = model.training
    model.eval()
    try:
        with torch.no_grad():
            if isinstance(batch, Mapping):
                return model(**batch)
            return model(*batch) if isinstance(batch, (tuple, list)) else model(batch)
    finally:
        model.train(was)


def _bytes(memory: str | int | None) -> int | None:
    if memory is None or isinstance(memory, int):
        return memory
    match = _SIZE.fullmatch(memory.strip())
    if match is None:
        raise UsageError(f"memory={memory!r}: write e.g. '2GiB', '500MB', or a number of bytes.")
    base = 1024 if match[3] else 1000
    return int(float(match[1]) * base ** _POWERS.index(match[2].upper() or " "))


def _paths() -> tuple[str, ...]:
    """Where this program finds modules that the interpreter would not find by itself."""
    own = tuple(filter(None, map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))))
    there = [os.path.abspath(path) for path in sys.path if isinstance(path, str) and path]
    return tuple(path for path in there if not path.startswith(own) and os.path.isdir(path))


def _is_first() -> bool:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()) == 0
    return os.environ.get("RANK", "0") in ("", "0")

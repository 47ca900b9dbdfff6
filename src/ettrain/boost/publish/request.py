"""What is to be published: small, durable, readable by another process on another machine. Data; standard library only.

Not here: the recorded batch and outputs, which lie beside it (see `tensors`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from ettrain.boost.publish.named import Named
from ettrain.errors import UsageError

SCHEMA: Final = 1
KINDS: Final = ("export", "aoti", "int8")
_IDENTITY: Final = ("name", "to", "checkpoint", "model", "export", "digest", "tolerance", "prefix")
"""Two requests that agree in these are the same one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One model to be made from one checkpoint."""

    name: str
    """The model's name in the target's folder."""
    to: str
    """Absolute folder of all published models."""
    checkpoint: str
    """Absolute folder, or address."""
    model: Named
    """Builds the model, without arguments."""
    export: str | Named
    """One of `KINDS`, or the user's function."""
    digest: str
    """Of the recorded batch and outputs."""
    tolerance: tuple[float, float] | None = None
    """(absolute, relative); None = the export's own."""
    prefix: str | None = None
    """What stands before the model's keys in the checkpoint; None = found."""
    memory_bytes: int | None = None
    """What the publisher may use; None = what there is."""
    wait_s: float = 600.0
    """How long the checkpoint may take to be finished."""
    tries: int = 3
    metrics: Mapping[str, float] = field(default_factory=dict)
    asked_ns: int = 0
    """Wall clock, ns since the epoch."""
    job: str = ""
    """Folder of the job that asked; '' = none was recorded."""
    attempt: str = ""
    where: str = "process"
    resources: Mapping[str, Any] = field(default_factory=dict)
    """For Slurm and Kubernetes."""
    python: str = ""
    paths: tuple[str, ...] = ()
    """Where the training program's modules are found."""
    cwd: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of the training process."""

    @property
    def id(self) -> str:
        """The same for the same request."""
        told = asdict(self)
        text = json.dumps({name: told[name] for name in _IDENTITY}, sort_keys=True)
        return f"{self.name}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"

    @property
    def kind(self) -> str:
        """Of the export, in a word."""
        return self.export if isinstance(self.export, str) else str(self.export)

    def to_bytes(self) -> bytes:
        """The file's content."""
        return (json.dumps({"schema": SCHEMA, "id": self.id, **asdict(self)}, indent=1, sort_keys=True) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Request:
        """The request in a file's content.

        Raises:
            UsageError: it is none.
        """
        try:
            told = json.loads(data)
            schema, said = told.pop("schema"), told.pop("id")
            if schema > SCHEMA:
                raise UsageError(f"{where}: written by a newer ettrain (schema {schema}, this one reads {SCHEMA}): update ettrain.")
            export, tolerance = told["export"], told["tolerance"]
            told["export"] = Named(**export) if isinstance(export, dict) else export
            told["tolerance"] = None if tolerance is None else (float(tolerance[0]), float(tolerance[1]))
            told["model"], told["paths"] = Named(**told["model"]), tuple(told["paths"])
            request = cls(**told)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{where}: is no publish request: {error}.") from None
        if said != request.id:
            raise UsageError(f"{where}: was altered: it says it is {said}, its content is {request.id}.")
        return request

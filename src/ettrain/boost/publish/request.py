"""What is to be published: small, durable, readable by another process on another machine. Data; standard library only.

Not here: the recorded batch and outputs, which lie beside it (see `tensors`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

from ettrain.boost.publish.named import Named
from ettrain.errors import UsageError

SCHEMA: Final = 1
KINDS: Final = ("export", "aoti", "int8")
_IDENTITY: Final = ("name", "to", "checkpoint", "model", "arguments", "export", "digest", "tolerance", "prefix")
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
    """Builds the model."""
    export: str | Named
    """One of `KINDS`, or the user's function."""
    digest: str
    """Of the recorded batch and outputs."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """What the model is built with, by name."""
    step: int | None = None
    """The checkpoint's, where it does not tell."""
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
    number: str = ""
    """Its id, once written."""

    @property
    def id(self) -> str:
        """The same for the same request."""
        if self.number:
            return self.number
        told = asdict(self)
        return f"{self.name}-{_digest({name: told[name] for name in _IDENTITY})[:10]}"

    @property
    def kind(self) -> str:
        """Of the export, in a word."""
        return self.export if isinstance(self.export, str) else str(self.export)

    def to_bytes(self) -> bytes:
        """The file's content, with a checksum of the rest of it."""
        told = {"schema": SCHEMA, **asdict(self), "number": self.id}
        return (json.dumps({**told, "checksum": _digest(told)}, indent=1, sort_keys=True) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Request:
        """The request in a file's content. Fields that this version does not know are passed over.

        Raises:
            UsageError: it is none.
        """
        try:
            told = json.loads(data)
            schema, said = told["schema"], told.pop("checksum")
            if schema > SCHEMA:
                raise UsageError(f"{where}: written by a newer ettrain (schema {schema}, this one reads {SCHEMA}): update ettrain.")
            if said != _digest(told):
                raise UsageError(f"{where}: was altered after it was written: its checksum does not fit.")
            export, tolerance = told["export"], told["tolerance"]
            told["export"] = Named(**export) if isinstance(export, dict) else export
            told["tolerance"] = None if tolerance is None else (float(tolerance[0]), float(tolerance[1]))
            told["model"], told["paths"] = Named(**told["model"]), tuple(told["paths"])
            return cls(**{one.name: told[one.name] for one in fields(cls) if one.name in told})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{where}: is no publish request: {error}.") from None


def _digest(told: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()

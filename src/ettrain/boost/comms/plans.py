"""A TorchRec sharding plan kept from the last start: rank 0 reads it instead of computing it; the broadcast to the others stays.

A plan is kept under a key made of all that it follows from: topology, batch size, constraints, tables, sharders, the planner's parts, and
the versions of torch, torchrec and fbgemm. Where something in there cannot be described, nothing is kept, and a warning says what. Plans
are pickles: keep them where only trusted jobs write.
"""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Iterator, Mapping
from enum import Enum
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, Final

import torch
import torch.distributed as dist

_VERSIONED: Final = ("torch", "torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu", "fbgemm-gpu-nightly")
_ASIDE: Final = ("_stats", "_debug", "_callbacks")
"""What a planner has beside that which makes the plan."""
_DEPTH: Final = 24


class UndescribedError(TypeError):
    """Something of which it cannot be said whether it is the same in the next start."""


class PlanCache:
    """A planner whose plans are kept; what it does not know, the planner does."""

    def __init__(self, planner: Any, folder: str | os.PathLike[str]) -> None:
        self.planner = planner
        self.folder = Path(folder)
        self.hit: bool | None = None
        """Whether the last plan was a kept one; None on ranks other than 0, and before."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.planner, name)

    def plan(self, module: Any, sharders: Any) -> Any:
        """The kept plan, or the planner's."""
        path = self._path(module, sharders)
        kept = _read(path) if path is not None else None
        self.hit = kept is not None
        if kept is not None:
            return kept
        made = self.planner.plan(module, sharders)
        if path is not None:
            _write(path, made)
        return made

    def collective_plan(self, module: Any, sharders: Any, group: Any = None) -> Any:
        """The plan, on all ranks: rank 0 reads or computes it and broadcasts it.

        Args:
            module: the model.
            sharders: its sharders.
            group: process group; None = the default one.
        Raises:
            RuntimeError: rank 0 could not plan; the text is its error's.
        """
        box: list[Any] = [None, None]
        failure: Exception | None = None
        if dist.get_rank(group) == 0:
            try:
                box[0] = self.plan(module, sharders)
            except Exception as error:  # noqa: BLE001 - the other ranks wait: they are told first, then it is raised
                failure = error
                box[1] = f"{type(error).__name__}: {error}"
        source = 0 if group is None else dist.get_global_rank(group, 0)
        dist.broadcast_object_list(box, src=source, group=group)
        if failure is not None:
            raise failure
        if box[1] is not None:
            raise RuntimeError(f"rank {source} could not plan: {box[1]}")
        return box[0]

    def _path(self, module: Any, sharders: Any) -> Path | None:
        try:
            return self.folder / f"plan-{plan_key(self.planner, module, sharders)}.pickle"
        except UndescribedError as error:
            warnings.warn(f"ettrain: the sharding plan is not kept: {error}", RuntimeWarning, stacklevel=4)
            return None


def plan_cache(planner: Any, folder: str | os.PathLike[str]) -> PlanCache:
    """Keep what a planner plans.

    `plan = plan_cache(planner, folder).collective_plan(model, sharders, group)`

    Args:
        planner: a TorchRec planner, e.g. `EmbeddingShardingPlanner`.
        folder: where plans are kept; made when needed. Only rank 0 reads and writes it.
    """
    return PlanCache(planner, folder)


def plan_key(planner: Any, module: Any, sharders: Any) -> str:
    """What a plan is kept under.

    Raises:
        UndescribedError: something that the plan may follow from cannot be described.
    """
    parts = {name: value for name, value in vars(planner).items() if name not in _ASIDE}
    text = describe([type(planner), parts, _tables(module, sharders), sharders, _versions()])
    return sha256(text.encode()).hexdigest()[:32]


def _versions() -> dict[str, str]:
    found = {}
    for name in _VERSIONED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _tables(module: Any, sharders: Any) -> list[Any]:
    """Per module that is sharded: name, type, configurations of its tables, and shape and type of its parameters."""
    kinds = tuple(sharder.module_type for sharder in sharders)
    found = []
    for name, part in module.named_modules():
        if isinstance(part, kinds):
            ask = getattr(part, "embedding_bag_configs", None) or getattr(part, "embedding_configs", None)
            weights = {key: (tuple(value.shape), value.dtype, value.device) for key, value in part.state_dict().items()}
            found.append([name, type(part), ask() if callable(ask) else None, weights])
    return found


def describe(value: Any, depth: int = 0, seen: tuple[int, ...] = ()) -> str:
    """A value in words that are the same in every process where it is equal.

    Raises:
        UndescribedError: it has no such words.
    """
    if value is None or isinstance(value, (bool, int, float, str, bytes, torch.dtype, torch.device)):
        return f"{type(value).__name__}:{value!r}"
    if isinstance(value, Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if isinstance(value, type):
        return f"class {value.__module__}.{value.__qualname__}"
    if id(value) in seen:
        return f"<outer {len(seen) - seen.index(id(value))}>"
    if depth > _DEPTH:
        raise UndescribedError(f"{type(value).__qualname__} lies too deep")
    return _inside(value, depth + 1, (*seen, id(value)))


def _inside(value: Any, depth: int, seen: tuple[int, ...]) -> str:
    def words(part: Any) -> str:
        return describe(part, depth, seen)

    if isinstance(value, Mapping):
        return "{" + ",".join(sorted(f"{words(key)}={words(item)}" for key, item in value.items())) + "}"
    if isinstance(value, (set, frozenset)):
        return "{" + ",".join(sorted(map(words, value))) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(words, value)) + "]"
    if isinstance(value, torch.Tensor):
        return words([tuple(value.shape), value.dtype, value.device, None if value.is_meta else _digest(value)])
    if isinstance(value, FunctionType):
        code = value.__code__
        consts = [str(const) for const in code.co_consts if not isinstance(const, CodeType)]
        held = [cell.cell_contents for cell in value.__closure__ or ()]
        return words(
            [value.__module__, value.__qualname__, code.co_code, code.co_names, consts, held, value.__defaults__, value.__kwdefaults__]
        )
    if isinstance(value, BuiltinFunctionType):
        return words([value.__module__, value.__qualname__, None if isinstance(value.__self__, ModuleType) else value.__self__])
    return words(_parts(value))


def _digest(tensor: torch.Tensor) -> str:
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return sha256(flat.numpy().tobytes()).hexdigest()


def _parts(value: Any) -> list[Any]:
    """What an object consists of, as pickle would take it apart: by that it is complete."""
    try:
        parts = value.__reduce_ex__(2)
    except Exception as error:
        raise UndescribedError(f"a {type(value).__module__}.{type(value).__qualname__} has no parts to compare") from error
    if isinstance(parts, str):
        return [type(value), parts]
    return [list(part) if isinstance(part, Iterator) else part for part in parts]


def _read(path: Path) -> Any:
    """A kept plan; None where there is none, or one that cannot be read."""
    try:
        return pickle.loads(path.read_bytes())  # noqa: S301 - the docs say where plans may be kept
    except (FileNotFoundError, NotADirectoryError):
        return None
    except Exception as error:  # noqa: BLE001 - a torn or foreign pickle may raise anything: the plan is computed again
        warnings.warn(f"ettrain: {path} cannot be read ({type(error).__name__}): the plan is computed again", RuntimeWarning, stacklevel=4)
        return None


def _write(path: Path, plan: Any) -> None:
    """Keep a plan, whole or not at all."""
    partial = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(pickle.dumps(plan))
        partial.replace(path)
    except Exception as error:  # noqa: BLE001 - a full disk, a plan that cannot be pickled: the job goes on with the plan it has
        warnings.warn(f"ettrain: the sharding plan is not kept: {error}", RuntimeWarning, stacklevel=4)

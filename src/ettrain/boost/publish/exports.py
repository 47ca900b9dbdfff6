"""What a model is turned into: an exported program, a compiled package, one with 8-bit weights, or what the user's function makes.

Each is written to a folder and read back from there, so that what is verified is what is served. Not here: publishing it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from ettrain.boost.publish import int8
from ettrain.boost.publish.named import resolve
from ettrain.boost.publish.request import Request
from ettrain.boost.publish.tensors import Recorded, first_sizes
from ettrain.errors import EttrainError, UsageError

PRIVATE: Final[dict[str, tuple[str, ...]]] = {"torch._inductor": ("aoti_compile_and_package", "aoti_load_package")}
"""Documented by torch, though in a module whose name is not public."""
FILE: Final = "model.pt2"
Runner = Callable[..., Any]


class Kind(NamedTuple):
    """One way to export."""

    make: Callable[[torch.nn.Module, Recorded, Path], dict[str, Any]]
    """Writes it to a folder; returns what to say of it."""
    load: Callable[[Path], Runner]
    tolerance: tuple[float, float]
    """(absolute, relative) difference from the training model's outputs that is taken for rounding."""
    memory: tuple[float, float]
    """Peak beyond the empty publisher: so many times the model's bytes, and so many bytes on top."""


def export(model: torch.nn.Module, recorded: Recorded, folder: Path) -> dict[str, Any]:
    """`torch.export`, with as many rows as the caller likes where the model allows it."""
    program, told = _exported(model, recorded)
    torch.export.save(program, folder / FILE)
    return told


def compiled(model: torch.nn.Module, recorded: Recorded, folder: Path) -> dict[str, Any]:
    """An AOTInductor package: machine code for the CPU it was made on. Needs a C++ compiler where it is made."""
    program, told = _exported(model, recorded)
    try:
        import_module("torch._inductor").aoti_compile_and_package(program, package_path=str(folder / FILE))
    except Exception as error:
        if "compiler" in str(error).lower() and "not found" in str(error).lower():
            raise UsageError(f"export='aoti' needs a C++ compiler where the publisher runs: {str(error)[:200]}") from error
        raise
    return {**told, "made_for": _machine()}


def as_int8(model: torch.nn.Module, recorded: Recorded, folder: Path) -> dict[str, Any]:
    """`torch.export` of the model with 8-bit weights."""
    done = int8.quantized(model)
    if not done["quantized"]:
        raise UsageError(
            f"export='int8': there is nothing to quantize in the model (left: {done['left'] or 'no layer of a kind that could be'})."
        )
    return {**export(model, recorded, folder), **done}


def _exported(model: torch.nn.Module, recorded: Recorded) -> tuple[Any, dict[str, Any]]:
    sizes = torch.export.ShapesCollection()
    tensors = first_sizes(recorded)
    for tensor in {id(one): one for one in tensors}.values():
        sizes[tensor] = {0: torch.export.Dim.AUTO}
    shapes = sizes.dynamic_shapes(model, recorded.args, recorded.kwargs) if tensors else None
    with torch.no_grad():
        program = torch.export.export(model, recorded.args, recorded.kwargs, dynamic_shapes=shapes)
    ranges = {str(symbol): [int(bounds.lower), _bound(bounds.upper)] for symbol, bounds in program.range_constraints.items()}
    return program, {"dynamic_sizes": ranges, "example_sizes": [list(one.shape) for one in tensors]}


def _bound(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError, AttributeError):
        return None


def _machine() -> str:
    return torch.backends.cpu.get_cpu_capability() if hasattr(torch.backends.cpu, "get_cpu_capability") else ""


def load_export(folder: Path) -> Runner:
    """The exported program in a folder."""
    runner: Runner = torch.export.load(folder / FILE).module()
    return runner


def load_compiled(folder: Path) -> Runner:
    """The compiled package in a folder."""
    runner: Runner = import_module("torch._inductor").aoti_load_package(str(folder / FILE))
    return runner


MIB: Final = 1 << 20
BUILT_IN: Final[dict[str, Kind]] = {
    "export": Kind(export, load_export, (1e-4, 1e-3), (3.4, 150 * MIB)),
    "aoti": Kind(compiled, load_compiled, (1e-4, 1e-3), (3.8, 250 * MIB)),
    "int8": Kind(as_int8, load_export, (2e-2, 2e-2), (1.7, 150 * MIB)),
}
OWN: Final = Kind(export, load_export, (1e-4, 1e-3), (1.0, 0))
"""What holds for the user's own function besides what it does."""
HALF: Final = (2e-2, 2e-2)
"""Tolerance where the training model answered in 16 bits."""


def kind_of(request: Request) -> Kind:
    """The request's export."""
    return BUILT_IN[request.export] if isinstance(request.export, str) else OWN


def make(request: Request, model: torch.nn.Module, recorded: Recorded, folder: Path) -> tuple[dict[str, Any], Runner | None]:
    """Export into a folder.

    Returns:
        (what to say of it, how the user's function says it is run; None where it says nothing, or where `load` of the kind does).

    Raises:
        UsageError: it cannot be exported so.
    """
    if isinstance(request.export, str):
        return BUILT_IN[request.export].make(model, recorded, folder), None
    function = resolve(request.export, "export")
    runner = function(model, folder, recorded.kwargs or recorded.args)
    if not any(folder.rglob("*")):
        raise UsageError(f"export={request.export}: wrote nothing to the folder it was given (its second argument).")
    if runner is not None and not callable(runner):
        raise UsageError(
            f"export={request.export}: must return None, or a callable that runs what it wrote; it returned a {type(runner).__name__}."
        )
    return {}, runner


REFUSED: Final = (EttrainError,)
"""What trying again does not mend."""

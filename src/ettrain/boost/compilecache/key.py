"""What makes a compile artifact valid: everything that another machine or version may have otherwise, and nothing that it need not.

Not here: what torch's own keys hold (graph, shapes, options, number of threads). They decide among the entries of an archive.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from ettrain._version import VERSION

SCHEMA: Final = 1
_ISA: Final = re.compile(
    r"(sse|ssse|avx|fma|amx|bmi|sha|sve|asimd|neon|vsx|v?aes|v?pclmul)\w*|f16c|gfni|popcnt|lzcnt|abm|adx|movbe|rdrnd|rdseed|clwb|clflushopt"
)
"""Of /proc/cpuinfo's flags, those that `-march=native` may turn into instructions; the rest differs between equal machines."""
_NEEDS_TORCH: Final = re.compile(r"torch\b(?!-)")
_DEFINES_OPS: Final = (b"torch.library", b"custom_op", b"TORCH_LIBRARY")


def environment_key(program: str, main: Path | None = None) -> dict[str, Any]:
    """Everything that must be equal for an artifact to be used, by name. JSON types only.

    Args:
        program: name under which the program's archives are kept apart from those of others.
        main: the program's file.
    """
    import torch

    key: dict[str, Any] = {
        "schema": SCHEMA,
        "program": program,
        "torch": f"{torch.__version__} {torch.version.git_version}",
        "torch_folder": os.path.dirname(os.path.abspath(torch.__file__)),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()} {'.'.join(platform.libc_ver())}",
        "cpu": cpu_capability(),
        "compiler": compiler_version(),
        "custom_ops": custom_ops_digest(main),
        "packages": operator_packages(),
    }
    if torch.cuda.is_available():
        device = torch.cuda.current_device()
        key["device"] = [torch.cuda.get_device_name(device), list(torch.cuda.get_device_capability(device))]
        key["cuda"] = str(torch.version.cuda or torch.version.hip)
        key["triton"] = _version_of("triton")
    return key


def digest(key: Mapping[str, Any]) -> str:
    """A name for a key, stable across hosts and processes: 16 hexadecimal digits."""
    text = json.dumps(key, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """In words, what keeps an archive made under `theirs` from being used under `ours`."""
    found = []
    for name in sorted({*ours, *theirs}):
        mine, other = ours.get(name), theirs.get(name)
        if mine == other:
            continue
        if isinstance(mine, list) and isinstance(other, list):
            more = [str(item) for item in other if item not in mine]
            less = [str(item) for item in mine if item not in other]
            parts = [f"{word} {' '.join(items)}" for word, items in (("needs", more), ("lacks", less)) if items]
            found.append(f"{name}: it {', '.join(parts)}" if parts else f"{name}: another order")
        else:
            found.append(f"{name}: {other!r} instead of {mine!r}")
    return found


def cpu_capability() -> list[str]:
    """What code built here may use: the instruction sets of this CPU, and what torch is limited to (ATEN_CPU_CAPABILITY)."""
    import torch

    return [torch.backends.cpu.get_cpu_capability(), *_instruction_sets()]


def _instruction_sets() -> list[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return [platform.processor()]
    words = next((line.partition(":")[2].split() for line in lines if line.lower().startswith(("flags", "features"))), [])
    return sorted({word for word in words if _ISA.fullmatch(word)})


def compiler_version() -> str:
    """The C++ compiler that Inductor uses, as it calls itself; '' where there is none."""
    try:
        from torch._inductor.cpp_builder import get_cpp_compiler

        name = get_cpp_compiler()
    except (ImportError, RuntimeError):  # another torch, or no compiler
        name = os.environ.get("CXX", "g++")
    try:
        told = subprocess.run([name, "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    return told.partition("\n")[0].strip()


def custom_ops_digest(main: Path | None = None) -> str:
    """Of the sources of the program's modules that define operators, and of the libraries of operators that were loaded.

    torch's keys know an operator by name and schema only: with another body the old one's gradient would be used.

    Args:
        main: the program's file; Python forgets it before the exit handlers run.
    """
    import torch

    sources = {path for module in list(sys.modules.values()) if (path := _source_of(module))} | ({main} if main else set())
    parts = {_file_digest(path) for path in sources if _defines_ops(path)}
    parts |= {_file_digest(Path(path)) for path in getattr(torch.ops, "loaded_libraries", ())}
    return hashlib.sha256("".join(sorted(parts)).encode()).hexdigest()[:16] if parts else ""


def operator_packages() -> list[str]:
    """Installed packages that build on torch, and may define operators, with their versions."""
    from importlib.metadata import distributions

    found = set()
    for package in distributions():
        if any(_NEEDS_TORCH.match(need) and "extra ==" not in need for need in package.requires or ()):
            found.add(f"{package.name} {package.version}")
    return sorted(found - {f"ettrain {VERSION}"})


def _source_of(module: ModuleType) -> Path | None:
    """The module's file, if it is the program's own: not of the standard library, not of an installed package, not ours."""
    name = getattr(module, "__name__", None)
    path = getattr(module, "__file__", None)
    if not isinstance(name, str) or not isinstance(path, str) or not path.endswith(".py"):
        return None
    top = name.partition(".")[0]
    installed = "/site-packages/" in path or "/dist-packages/" in path
    return None if installed or top in ("torch", "ettrain") or top in sys.stdlib_module_names else Path(path)


def _defines_ops(path: Path) -> bool:
    try:
        source = path.read_bytes()
    except OSError:
        return False
    return any(word in source for word in _DEFINES_OPS)


def _file_digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return str(path)


def _version_of(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def program_file() -> Path | None:
    """The running program's file."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(path).absolute() if isinstance(path, str) else None


def program_name() -> str:
    """What the running program is called, wherever it lies: its module with `-m`, else its file."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    path = program_file()
    name = spec.name.removesuffix(".__main__") if spec is not None else path.name if path else ""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:80] or "program"

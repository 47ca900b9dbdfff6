"""The peer: ml-goodput-measurement in a virtual environment of its own, never in the project's.

`--peer` makes it (`python -m venv`, then `pip install`, about 330 MB on disk); without the flag it is used where it exists. The place is
$ETT_BENCH_CACHE/peer, by default ~/.cache/ettrain-bench/peer. To be rid of it, remove that folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from figures import progress

PEER: Final = "ml-goodput-measurement==0.2.3"
OTEL: Final = "opentelemetry-distro"
INSTALL_S: Final = 300


def folder() -> Path:
    """Where the peer's environment is, or would be."""
    cache = os.environ.get("ETT_BENCH_CACHE")
    return (Path(cache) if cache else Path.home() / ".cache" / "ettrain-bench") / "peer"


def python(*, install: bool) -> tuple[Path | None, str]:
    """(the peer's interpreter, why there is none).

    Args:
        install: make the environment if it is missing.
    """
    found = folder() / "bin" / "python"
    if _has(found, "ml_goodput_measurement"):
        return found, ""
    if not install:
        return None, f"{PEER} is not installed; --peer installs it into {folder()}"
    progress(f"installing {PEER} into {folder()} (about 330 MB)")
    try:
        _call([sys.executable, "-m", "venv", str(folder())])
        _call([str(found), "-m", "pip", "install", "--quiet", PEER])
    except (OSError, subprocess.SubprocessError) as error:
        return None, f"{PEER} cannot be installed: {_reason(error)}"
    try:
        _call([str(found), "-m", "pip", "install", "--quiet", OTEL])
    except (OSError, subprocess.SubprocessError) as error:
        progress(f"{OTEL} cannot be installed, its start-up is not measured: {_reason(error)}")
    return (found, "") if _has(found, "ml_goodput_measurement") else (None, f"{PEER} was installed but cannot be imported")


def otel_folder(interpreter: Path | None) -> Path | None:
    """The folder that OpenTelemetry's auto-instrumentation puts first on PYTHONPATH; None where it is not installed."""
    if interpreter is None:
        return None
    found = sorted(interpreter.parent.parent.glob("lib/python*/site-packages/opentelemetry/instrumentation/auto_instrumentation"))
    return found[0] if found else None


def _has(interpreter: Path, module: str) -> bool:
    if not interpreter.exists():
        return False
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([str(interpreter), "-c", code], check=False, capture_output=True).returncode == 0


def _call(words: list[str]) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True, timeout=INSTALL_S)


def _reason(error: Exception) -> str:
    text = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
    return text[-1] if text else type(error).__name__

"""Inductor precompiles the C++ headers before each kernel, also where the kernel's library is there: half of what is left of a warm start.

The precompiled headers themselves are 150 MB each, far more than all the rest, so they are not in the archive.
"""

from __future__ import annotations

import functools
from typing import Any

from ettrain.boost.compilecache.artifacts import has_compiled


def without_needless_headers() -> bool:
    """Precompile headers only once a graph had to be compiled: until then all libraries came from the archive.

    A kernel built without a precompiled header is the same, built more slowly. Returns False where this torch does it otherwise.
    """
    import torch._inductor.codecache as module

    run = getattr(module, "_precompile_header", None)
    if run is None:
        return False
    if hasattr(run, "ettrain"):
        return True

    @functools.wraps(run)
    def precompile_header(*args: Any, **kwargs: Any) -> Any:
        return run(*args, **kwargs) if has_compiled() else None

    precompile_header.ettrain = True  # type: ignore[attr-defined]
    module._precompile_header = precompile_header
    return True

"""Work that looks like training and is none: a step that is run ahead of the training, to compile, and undone.

While it runs, what the hooks see counts for nothing: no step, backward, batch, first forward or evaluation. Compilations in it are found
as ever, and its time is billed to `compile`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ettrain.record.api import stage
from ettrain.record.recorder import recorder


@contextmanager
def paused(part: str) -> Iterator[None]:
    """Count nothing inside.

    Args:
        part: what it is, shown under the stage `compile`.
    """
    with stage("compile", part=part):
        recorder.paused += 1
        try:
            yield
        finally:
            recorder.paused -= 1

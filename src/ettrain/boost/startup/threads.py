"""What a stage's thread takes over from the main one: the settings that Python and torch keep per thread.

Taken over: context variables, torch's grad mode, default device, and current CUDA device. Not taken over: autocast, and whatever
else a program keeps per thread; a stage that needs that sets it itself.
"""

from __future__ import annotations

import contextvars
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from ettrain.boost.private import current_cuda_device


class ThreadSettings:
    """The settings of the thread that makes it."""

    __slots__ = ("_context", "_cuda", "_device", "_grad")

    def __init__(self) -> None:
        self._context = contextvars.copy_context()
        torch: Any = sys.modules.get("torch")
        self._grad: bool | None = None
        self._device: Any = None
        self._cuda = 0
        if torch is not None and hasattr(torch, "get_default_device") and hasattr(torch, "cuda"):  # else it is being imported
            self._grad = torch.is_grad_enabled()
            device = torch.get_default_device()
            self._device = device if device.type != "cpu" else None
            self._cuda = current_cuda_device()

    def run(self, call: Callable[[], Any]) -> Any:
        """Call it under these settings."""
        return self._context.copy().run(self._under, call)

    def _under(self, call: Callable[[], Any]) -> Any:
        torch: Any = sys.modules.get("torch")
        if torch is None or self._grad is None:
            return call()
        with ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(self._grad))
            if self._device is not None:
                stack.enter_context(torch.device(self._device))
            if self._cuda:
                torch.cuda.set_device(self._cuda)
            return call()

"""Copying a snapshot into the image of this rank's file, on the thread of the save."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.checkpoint import DefaultSavePlanner

from ettrain.boost.checkpoint.layout import Layout, flat
from ettrain.boost.checkpoint.writing import Image


class Stage:
    """One image, used by save after save, and how to fill it."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.image = Image(layout.size)
        self._bytes: Any = None
        self._streams: dict[Any, Any] = {}

    def prepare(self) -> None:
        """Have the image's pages mapped and what is the same in every save in its place."""
        self.image.touch()
        for offset, data in self.layout.fixed:
            self.image.put(offset, data)

    def copy(self, planner: DefaultSavePlanner, ready: dict[Any, Any]) -> None:
        """Copy the tensors of the state that the planner was set up with.

        CPU tensors are copied by this one thread, without the GIL; tensors on a device by a stream of their own into pinned memory.

        Args:
            planner: it has the state.
            ready: device -> event after which the state is complete.
        """
        for piece in self.layout.pieces:
            if not piece.nbytes:
                continue
            source = flat(planner.resolve_data(piece.item), piece.stride)
            if source.device.type == "cpu":
                self.image.fill(piece.offset, source.data_ptr(), piece.nbytes)
            else:
                self._from_device(piece.offset, piece.nbytes, source, ready)
        for stream in self._streams.values():
            stream.synchronize()

    def _from_device(self, offset: int, nbytes: int, source: torch.Tensor, ready: dict[Any, Any]) -> None:
        if self._bytes is None:
            self._bytes = torch.frombuffer(self.image.memory, dtype=torch.uint8)
            _pin(self.image)
        stream = self._streams.get(source.device)
        if stream is None:
            stream = self._streams[source.device] = torch.Stream(source.device)
        if source.device in ready:
            stream.wait_event(ready[source.device])
        with stream:
            self._bytes[offset : offset + nbytes].copy_(source.view(torch.uint8), non_blocking=True)

    def close(self) -> None:
        """Give the image's memory back."""
        if self._bytes is not None and torch.cuda.is_available():
            torch.cuda.cudart().cudaHostUnregister(self.image.address)
        self._bytes = None
        self.image.close()


def events() -> dict[Any, Any]:
    """An event on each device whose stream may still be computing the state."""
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return {}
    device = torch.device("cuda", torch.cuda.current_device())
    return {device: torch.cuda.current_stream(device).record_event()}


def _pin(image: Image) -> None:
    """Let the device copy into the image without a stop on the way; where it cannot, it copies slower."""
    if torch.cuda.is_available():
        torch.cuda.cudart().cudaHostRegister(image.address, image.size, 0)

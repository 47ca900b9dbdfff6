"""Reads tensors of a DCP checkpoint from the disk into the memory that is meant for them, without a copy of a piece in between.

A piece is a small archive of torch's; where it is of the plain kind that torch and `ett.Checkpointer` write, its bytes go straight to their
place. Any other is left to DCP's own way. Not here: whether the checkpoint can be trusted (see `reading`).
"""

from __future__ import annotations

import collections
import ctypes
import io
import pickle
import sys
import zipfile
from typing import Any, Final

import torch
from torch.distributed.checkpoint.metadata import MetadataIndex

_AT_ONCE: Final = 8 << 20
_LOCAL_HEADER: Final = 30
"""Fixed part of a file's head in a zip archive; the lengths of name and extra field are its last four bytes."""


def fill(state: dict[str, Any], reader: Any) -> dict[str, Any]:
    """Fill the tensors of `state` whose pieces can be read straight.

    Args:
        state: name in the checkpoint -> tensor, or another value.
        reader: a `reading.SafeReader` or its like; its checkpoint was found whole.
    Returns:
        The rest of it, for `reading.load`.
    """
    metadata = reader.metadata()
    return {name: one for name, one in state.items() if not _filled(name, one, metadata, reader)}


def _filled(name: str, tensor: Any, metadata: Any, reader: Any) -> bool:
    told = metadata.state_dict_metadata.get(name)
    properties = getattr(told, "properties", None)
    if told is None or properties is None or type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.device.type != "cpu":
        return False
    if tensor.dtype != properties.dtype or tuple(tensor.shape) != tuple(told.size):
        return False
    return all(_piece(name, tensor, chunk, metadata, reader) for chunk in told.chunks)


def _piece(name: str, tensor: torch.Tensor, chunk: Any, metadata: Any, reader: Any) -> bool:
    info = metadata.storage_data[MetadataIndex(name, chunk.offsets)]
    place = tensor.detach()
    for dim, (begin, length) in enumerate(zip(chunk.offsets, chunk.sizes, strict=True)):
        place = place.narrow(dim, begin, length)
    if not place.is_contiguous() or info.transform_descriptors:
        return False
    with reader.fs.create_stream(reader.fs.concat_path(reader.path, info.relative_path), "rb") as stream:
        try:
            begin = _begin_of(_Window(stream, info.offset, info.length), place)
        except (zipfile.BadZipFile, pickle.UnpicklingError, KeyError, ValueError, TypeError, EOFError, IndexError, AttributeError):
            return False
        return begin is not None and hasattr(stream, "readinto") and _read(stream, info.offset + begin, place)


def _begin_of(window: _Window, place: torch.Tensor) -> int | None:
    """Where in the piece the tensor's bytes begin; None where they do not lie there as they lie in `place`."""
    with zipfile.ZipFile(window) as archive:
        names = {name.partition("/")[2]: name for name in archive.namelist()}
        data = [name for name in names if name.startswith("data/")]
        if data != ["data/0"] or archive.read(names["byteorder"]).decode() != sys.byteorder:
            return None
        found, told = archive.getinfo(names["data/0"]), _Shape(archive.read(names["data.pkl"])).load()
    offset, size, stride = told
    same = offset == 0 and tuple(size) == tuple(place.shape) and tuple(stride) == place.stride()
    if not same or found.compress_type != zipfile.ZIP_STORED or found.file_size != place.numel() * place.element_size():
        return None
    window.seek(found.header_offset + _LOCAL_HEADER - 4)
    lengths = window.read(4)
    return found.header_offset + _LOCAL_HEADER + int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")


def _read(stream: Any, begin: int, place: torch.Tensor) -> bool:
    size = place.numel() * place.element_size()
    if not size:
        return True
    memory = memoryview((ctypes.c_char * size).from_address(place.data_ptr())).cast("B")
    stream.seek(begin)
    done = 0
    while done < size:
        count = stream.readinto(memory[done : done + _AT_ONCE])
        if not count:
            return False
        done += count
    return True


class _Shape(pickle.Unpickler):
    """Reads of a pickled tensor where it lies in its storage: (offset, size, stride). Knows no name but those of a plain tensor."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return lambda storage, offset, size, stride, *_: (offset, size, stride)
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if module == "torch" and name.endswith("Storage"):
            return name
        raise pickle.UnpicklingError(name)

    def persistent_load(self, pid: Any) -> Any:
        return None


class _Window(io.RawIOBase):
    """A part of a file as a file."""

    def __init__(self, stream: Any, begin: int, length: int) -> None:
        super().__init__()
        self._stream, self._begin, self._length, self._at = stream, begin, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence])
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._length - self._at)
        self._stream.seek(self._begin + self._at)
        data = bytes(self._stream.read(left if size is None or size < 0 else min(size, left)))
        self._at += len(data)
        return data

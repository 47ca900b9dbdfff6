"""What one rank writes of a checkpoint, byte for byte: where in its file each tensor's data go.

Planner, file format and metadata are those of torch.distributed.checkpoint (DCP), through its public classes, so that any DCP reader
reads the result. DCP's own writer is let loose once on tensors without data; what it writes then is everything of the file but the
data, and the places left free are where a save copies them. As long as the structure of the state stays as it is, a save needs no
planning, no serialisation and no talk between ranks: it copies into an image of the file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import math
import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemWriter, Metadata, SavePlan
from torch.distributed.checkpoint.filesystem import FileSystemBase
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from ettrain.errors import CheckpointSaveError, UsageError

METADATA: Final = ".metadata"
_OBJECTS_FILE: Final = 1
_ALIGNMENT: Final = 64
"""Of the tensors' data in the file, as torch.save aligns them."""


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """One tensor's place in the file."""

    item: WriteItem
    offset: int
    nbytes: int
    stride: tuple[int, ...]
    """Of the stored tensor; its bytes lie in the order of its storage."""


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """The file of a rank's tensors, but for the data of the tensors."""

    name: str
    size: int
    pieces: tuple[Piece, ...]
    fixed: tuple[tuple[int, bytes], ...]
    """Bytes around the tensors: (offset, bytes)."""
    objects: tuple[WriteItem, ...]
    """What is no tensor: written anew with every save, into a file of its own."""
    results: tuple[WriteResult, ...]
    """DCP's account of the tensors' file."""


def check_torch() -> None:
    """Lay out one small tensor, so that a torch that cannot be used is found before training, not at the first save.

    Raises:
        UsageError: this torch cannot be used, and why.
    """
    try:
        planner = StatePlanner()
        plans, _ = global_plans(planner, [planner.local_plan({"tensor": torch.zeros(3)}, coordinator=True)])
        layout(planner, planner.finish_plan(plans[0]))
    except Exception as error:  # noqa: BLE001 - a torch of another make may fail in any way
        raise UsageError(
            f"ett.Checkpointer: torch {torch.__version__} writes checkpoints in a way that is not known here ({type(error).__name__}: {error}). "
            "It is made for torch 2.8 and newer; torch.distributed.checkpoint works without it."
        ) from None


class StatePlanner(DefaultSavePlanner):  # type: ignore[misc]
    """DCP's planner over a state dict, in the calls that a save consists of."""

    def local_plan(self, state: Mapping[str, Any], *, coordinator: bool) -> SavePlan:
        """What this rank could write."""
        self.set_up_planner(dict(state), is_coordinator=coordinator)
        return self.create_local_plan()


class _Sample(DefaultSavePlanner):  # type: ignore[misc]
    """Stands in for the planner where only the form of DCP's account is wanted."""

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor:
        return torch.zeros(1)


def blank(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor on the CPU of the form in which `tensor` is stored: dense, in its own order of dimensions. Its content is arbitrary."""
    form = torch.empty_like(tensor.detach(), device="meta")
    return torch.empty_strided(form.size(), form.stride(), dtype=tensor.dtype)


def digest(plan: SavePlan) -> str:
    """Tells plans of another structure apart."""
    told = [(item.index.fqn, item.index.offset, item.type.value, item.tensor_data) for item in plan.items]
    return hashlib.sha256(repr(told).encode()).hexdigest()


def global_plans(planner: StatePlanner, plans: Sequence[SavePlan]) -> tuple[list[SavePlan], Metadata]:
    """The coordinator's part of the planning: who writes which of the tensors that several ranks have.

    Raises:
        CheckpointSaveError: the ranks' parts do not make a whole.
    """
    try:
        plans, metadata = planner.create_global_plan(list(plans))
    except ValueError as error:
        raise CheckpointSaveError(f"the ranks' states do not fit together: {error}") from None
    return _file_writer(_Files()).prepare_global_plan(plans), metadata


def layout(planner: StatePlanner, plan: SavePlan) -> Layout:
    """Where this rank's tensors go.

    Raises:
        CheckpointSaveError: this torch writes tensors in a way that is not understood here.
    """
    tensors = [item for item in plan.items if item.type != WriteItemType.BYTE_IO]
    objects = tuple(item for item in plan.items if item.type == WriteItemType.BYTE_IO)
    if not tensors:
        return Layout("", 0, (), (), objects, ())
    name, told = _account_of(dataclasses.replace(plan, items=tensors[:1]))
    stream = _Stream()
    pieces, results = [], []
    for item in tensors:
        form = blank(_tensor_of(planner, item))
        begin = stream.align(_ALIGNMENT)
        with torch.serialization.skip_data():
            torch.save(form, stream)
        length = stream.size - begin
        nbytes = form.numel() * form.element_size()
        pieces.append(Piece(item, stream.gap(begin, nbytes, item.index.fqn), nbytes, form.stride()))
        where = dataclasses.replace(told, relative_path=name, offset=begin, length=length)
        results.append(WriteResult(index=item.index, size_in_bytes=length, storage_data=where))
    return Layout(name, stream.size, tuple(pieces), tuple(stream.written), objects, tuple(results))


def _tensor_of(planner: DefaultSavePlanner, item: WriteItem) -> torch.Tensor:
    tensor = planner.resolve_data(item)
    if not isinstance(tensor, torch.Tensor):
        raise CheckpointSaveError(f"{item.index.fqn}: {type(tensor).__name__} where a tensor was planned")
    return tensor


def _account_of(plan: SavePlan) -> tuple[str, Any]:
    """The name of this rank's file, and how DCP says where in it an item lies."""
    files = _Files()
    (written,) = _file_writer(files).write_data(plan, _Sample()).wait()
    return files.name(), written.storage_data


def objects_file(planner: StatePlanner, layout: Layout, prefix_of: SavePlan) -> tuple[str, bytes, list[WriteResult]]:
    """What is no tensor, as it is now: name and content of its file, and DCP's account of it; '' where there is none."""
    if not layout.objects:
        return "", b"", []
    files = _Files()
    written = _file_writer(files).write_data(dataclasses.replace(prefix_of, items=list(layout.objects)), planner).wait()
    name = files.name().replace("_0.", f"_{_OBJECTS_FILE}.")
    moved = [dataclasses.replace(result, storage_data=dataclasses.replace(result.storage_data, relative_path=name)) for result in written]
    return name, files.only().content(), moved


def metadata_file(metadata: Metadata, results: Sequence[Sequence[WriteResult]]) -> bytes:
    """The content of DCP's `.metadata`."""
    files = _Files()
    _file_writer(files).finish(dataclasses.replace(metadata), [list(of_rank) for of_rank in results])
    return files.only().content()


def dumped(plan: Any) -> bytes:
    """A plan for the other ranks of this job."""
    return pickle.dumps(plan)


def loaded(data: bytes) -> Any:
    """A plan of another rank of this job."""
    return pickle.loads(data)  # noqa: S301 - from a rank of this very job, over its own store


def flat(tensor: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """The tensor's elements in the order in which they are stored: its own memory where that is dense, else a copy."""
    tensor = tensor.detach()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if tensor.stride() != stride:
        copy = torch.empty_strided(tensor.size(), stride, dtype=tensor.dtype, device=tensor.device)
        tensor = copy.copy_(tensor)
    return tensor.as_strided((math.prod(tensor.size()),), (1,))


def _file_writer(files: _Files) -> FileSystemWriter:
    writer = FileSystemWriter("", sync_files=False)
    writer.fs = files
    return writer


class _Stream(io.RawIOBase):
    """A file in memory that keeps what is written and remembers what was left out."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[tuple[int, bytes]] = []
        self.gaps: dict[int, int] = {}
        self.size = 0

    def write(self, data: Any) -> int:
        data = bytes(data)
        if self.written and self.written[-1][0] + len(self.written[-1][1]) == self.size and len(self.written[-1][1]) < 1 << 16:
            begin, before = self.written.pop()
            self.written.append((begin, before + data))
        else:
            self.written.append((self.size, data))
        self.size += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Only what torch does to leave out a tensor's data."""
        if whence != io.SEEK_CUR or offset < 0:
            raise io.UnsupportedOperation("seek")
        self.gaps[self.size] = offset
        self.size += offset
        return self.size

    def tell(self) -> int:
        return self.size

    def close(self) -> None:
        """Stays readable."""

    def content(self) -> bytes:
        return b"".join(data for _, data in self.written)

    def align(self, size: int) -> int:
        """Go on at a multiple of `size`; where that is."""
        self.size = -(-self.size // size) * size
        return self.size

    def gap(self, begin: int, nbytes: int, name: str) -> int:
        """Where from `begin` on a tensor's data were left out.

        Raises:
            CheckpointSaveError: there is not exactly one such place, of that size.
        """
        if not nbytes:
            return begin
        found = [offset for offset, size in self.gaps.items() if offset >= begin and size == nbytes]
        if len(found) != 1:
            raise CheckpointSaveError(f"{name}: torch {torch.__version__} stores tensors in a way that is not known here")
        return found[0]


class _Files(FileSystemBase):  # type: ignore[misc]
    """A file system in memory, for DCP's writer."""

    def __init__(self) -> None:
        self.streams: dict[str, _Stream] = {}

    def only(self) -> _Stream:
        (stream,) = self.streams.values()
        return stream

    def name(self) -> str:
        (name,) = self.streams
        return name

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        yield self.streams.setdefault(os.path.basename(path), _Stream())

    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str | os.PathLike[str]:
        return os.path.join(path, suffix)

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        self.streams[os.path.basename(new_path)] = self.streams.pop(os.path.basename(path))

    def init_path(self, path: str | os.PathLike[str]) -> str | os.PathLike[str]:
        return Path(path)

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """There are no folders."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:  # noqa: ARG003 - DCP's signature
        return True

    def exists(self, path: str | os.PathLike[str]) -> bool:
        return os.path.basename(path) in self.streams

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        self.streams.pop(os.path.basename(path), None)

"""What a worker process adds to each batch, and what it is started with after a restart.

With a batch comes the number of the worker, the state of its random generators if it drew, and the state of its copy of the dataset, if that
has one: the position that counts is that of the batch handed out, and the worker is further on by then. Runs inside the workers; both
classes travel there with the loader.
"""

from __future__ import annotations

import pickle
import random
import sys
from array import array
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.utils.data import get_worker_info

from ettrain.boost import generators
from ettrain.boost.feed.streams import NOTHING, Stream, is_stateful

NOBODY: Final = -1
"""In place of a worker's number: an empty batch, which stands for a worker whose turn is over."""

Parcel = tuple[Any, int, bytes | None, bytes | None]
"""A batch, the worker's number, its generators and its dataset's state if they changed since its last parcel."""


Drawn = tuple[bytes, Any, tuple[Any, ...] | None]
"""The states of torch's, Python's and numpy's generators; None: there is no numpy."""


class Pack:
    """The loader's collate function, with the worker's state packed to its result."""

    def __init__(self, collate: Callable[[Any], Any], *, single: bool) -> None:
        self._collate = collate
        self._single = single
        self._last_drawn: Drawn | None = None
        self._dataset: bytes | None = None

    def __call__(self, data: Any) -> Parcel:
        """Called in the worker."""
        info: Any = get_worker_info()
        if _is_empty(data, info.dataset):
            return None, NOBODY, None, None
        batch = self._collate(data[0] if self._single else data)
        return batch, info.id, self._generators(), self._state_of(info.dataset)

    def _generators(self) -> bytes | None:
        now = _drawn()
        if now == self._last_drawn:
            return None
        self._last_drawn = now
        return pickle.dumps(now)

    def _state_of(self, dataset: Any) -> bytes | None:
        if isinstance(dataset, Stream):
            state = pickle.dumps(dataset._ett_state())
        elif is_stateful(dataset):
            state = pickle.dumps({"dataset": dataset.state_dict()})
        else:
            return None
        if state == self._dataset:
            return None
        self._dataset = state
        return state


def _drawn() -> Drawn:
    """The global generators in a form that is quick to compare and to send: this is asked with every batch."""
    state = torch.get_rng_state()
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is None:
        return bytes(state.tolist()), random.getstate(), None
    name, keys, *rest = numpy.get_state(legacy=True)
    return state.numpy().tobytes(), random.getstate(), (name, keys.tobytes(), *rest)


def plain_generators(sent: bytes) -> dict[str, Any]:
    """What `Pack` sent of a worker's generators, as `generators.as_plain` has it."""
    torchs, pythons, numpys = pickle.loads(sent)  # noqa: S301 - from our own worker process
    plain = {"torch": torch.frombuffer(bytearray(torchs), dtype=torch.uint8), "random": pythons}
    if numpys is not None:
        name, keys, *rest = numpys
        plain["numpy.random"] = [name, array("I", keys).tolist(), *rest]
    return plain


def plain_stream(sent: bytes) -> dict[str, Any]:
    """What `Pack` sent of a worker's dataset."""
    state: dict[str, Any] = pickle.loads(sent)  # noqa: S301 - from our own worker process
    return state


def _is_empty(data: Any, dataset: Any) -> bool:
    if isinstance(dataset, Stream):
        return data is NOTHING or (isinstance(data, list) and bool(data) and data[0] is NOTHING)
    return type(data) is list and not data


class Enter:
    """The loader's `worker_init_fn`, and after it what the worker goes on from."""

    def __init__(self, begin: Callable[[int], Any] | None) -> None:
        self._begin = begin
        self.luggage: dict[int, dict[str, Any]] = {}
        """By number of the worker: `generators`, `stream`, the dataset's state, as far as there are any, and `over`: they are of the epoch before."""
        self.base: dict[int, Any] = {}
        """States of a dataset's pieces when they were dealt out."""
        self.skipped: dict[int, int] = {}
        """By number of the worker: samples of its first batch, which is an empty one."""

    def __call__(self, worker: int) -> None:
        """Called in the worker, before it makes an iterator of the dataset."""
        if self._begin is not None:
            self._begin(worker)
        info: Any = get_worker_info()
        luggage = self.luggage.get(worker, {})
        stream = luggage.get("stream", {})
        if isinstance(info.dataset, Stream):
            info.dataset._ett_go_on({"base": self.base, **stream}, anew=luggage.get("over", False), skipped=self.skipped.get(worker, 0))
        elif "dataset" in stream:
            info.dataset.load_state_dict(stream["dataset"])
        if "generators" in luggage:
            generators.put_back(generators.from_plain(luggage["generators"]))

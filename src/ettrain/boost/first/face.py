"""`ett.first_batch`: start the real pipeline in the background, and have a batch to compile with at once."""

from __future__ import annotations

import multiprocessing
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from ettrain import clock
from ettrain.boost import generators
from ettrain.boost.first.fill import UnfillableError, batch_from
from ettrain.boost.first.learned import Learned
from ettrain.boost.first.schema import Node, UndescribableError, describe, inherit, nodes_in, signature_of, tensors_in, widen
from ettrain.boost.private import mark_dynamic
from ettrain.boost.startup.lanes import other_stages
from ettrain.record.guard import guard
from ettrain.record.rank import rank_of_environment
from ettrain.record.recorder import recorder

T = TypeVar("T")

LOOKED_AT: Final = 64
"""Batches whose shapes are compared, to learn which dimensions vary."""


class FirstBatch(Generic[T]):
    """A loader under way. Iterate over it in place of the loader: it yields the very batches that the loader would have yielded."""

    def __init__(
        self, loader: Iterable[T], *, make: Callable[[], Any] | None, learned: Learned, keep: bool, background: bool | None
    ) -> None:
        self._loader = loader
        self._make = make
        self._learned = learned
        self._keep = keep
        self._batch: Any = None
        self._batch_made = False
        self.source = "none"
        """What the compile batch was made from: `make`, `kept` (a real batch of an earlier attempt), `schema` (a description of one),
        `dataset`, or `none`."""
        self.notes: list[str] = []
        """Why the batch was not made from what would have been first."""
        self._earlier = learned.read()
        self._warn_of_fork()
        self._iterator: Iterator[T] | None = iter(loader)  # on this thread: it draws the workers' seed, and starts them
        self._outcome: tuple[bool, Any] | None = None
        self._thread: threading.Thread | None = None
        if getattr(loader, "num_workers", 0) > 0 if background is None else background:
            self._thread = threading.Thread(target=self._take, name="ettrain-first-batch", daemon=True)
            self._thread.start()

    def _warn_of_fork(self) -> None:
        """A forked worker inherits the locks that other threads hold at that moment, and nobody opens them there."""
        others = other_stages()
        if others and getattr(self._loader, "num_workers", 0) > 0:
            context = getattr(self._loader, "multiprocessing_context", None) or multiprocessing
            if context.get_start_method() == "fork":
                names = ", ".join(f"'{name}'" for name in others)
                self.notes.append(f"the loader forked its workers while stage {names} ran")
                sys.stderr.write(
                    f"ettrain: ett.first_batch: the loader forks its workers while stage {names} runs, and a lock held there stays shut in them "
                    "for ever. Make the loader's stage depend on it, or give the loader multiprocessing_context='forkserver'.\n"
                )

    def _take(self) -> None:
        """Take the first batch."""
        assert self._iterator is not None
        try:
            self._outcome = (True, next(self._iterator))
        except BaseException as error:  # noqa: BLE001 - raised where the program asks for the batch
            self._outcome = (False, error)

    # ---- the batch to compile with

    @property
    def compile_batch(self) -> Any:
        """A batch like the real ones, made when first asked for; None where none can be made."""
        if not self._batch_made:
            self._batch_made = True
            self._batch = self._compile_batch()
            if self._batch is not None and self._earlier is not None:
                self._mark_dynamic(self._earlier)
        return self._batch

    def _compile_batch(self) -> Any:
        if self._make is not None:
            self.source = "make"
            return self._make()
        if self._earlier is not None:
            for source in ("kept", "schema"):
                batch = self._replayed(self._earlier, source)
                if batch is not None:
                    self.source = source
                    return batch
        batch = self._from_dataset()
        self.source = "none" if batch is None else "dataset"
        return batch

    def _replayed(self, node: Node, source: str) -> Any:
        try:
            values = self._learned.read_values() if source == "kept" else None
            if source == "kept" and values is None:
                return None
            return batch_from(node, values)
        except UnfillableError as error:
            self.notes.append(f"the batch recorded by an earlier attempt cannot be made again: {error}")
        except Exception as error:  # noqa: BLE001 - a file that torch cannot load may raise anything
            self.notes.append(f"the batch kept by an earlier attempt cannot be read: {type(error).__name__}: {error}")
        return None

    def _from_dataset(self) -> Any:
        """As the loader would collate the first items of its dataset; it draws nothing, as far as the program can see."""
        dataset, collate = getattr(self._loader, "dataset", None), getattr(self._loader, "collate_fn", None)
        size = getattr(self._loader, "batch_size", None) or getattr(getattr(self._loader, "batch_sampler", None), "batch_size", None)
        if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__") and callable(collate) and isinstance(size, int)):
            self.notes.append("the loader has no dataset that items could be taken from: pass make=, or run under `ett run` again")
            return None
        states = generators.take()
        try:
            return collate([dataset[index] for index in range(min(size, len(dataset)))])  # type: ignore[arg-type, index]
        except Exception as error:  # noqa: BLE001 - the user's dataset; the training does without
            self.notes.append(f"no batch could be taken from the dataset: {type(error).__name__}: {error}")
            return None
        finally:
            generators.put_back(states)

    def _mark_dynamic(self, node: Node) -> None:
        """Tell torch.compile which dimensions vary, so that one graph serves all sizes."""
        nodes, tensors = list(nodes_in(node)), list(tensors_in(self._batch))
        if len(nodes) != len(tensors) or not any(told["dynamic"] for told in nodes):
            return
        for tensor, told in zip(tensors, nodes, strict=True):
            if told["dynamic"] and tensor.dim() == len(told["shape"]) and not mark_dynamic(tensor, told["dynamic"]):
                self.notes.append("dimensions that vary are not marked: this torch has no torch._dynamo.maybe_mark_dynamic")
                return

    # ---- the real ones

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[T]:
        """The batches of one pass, from the very first; each further call begins a further pass over the loader."""
        iterator, self._iterator = self._iterator, None
        return iter(self._loader) if iterator is None else self._first_pass(iterator)

    def _first_pass(self, iterator: Iterator[T]) -> Iterator[T]:
        try:
            first = self._first(iterator)
        except StopIteration:
            return
        node = self._learn(first)
        yield first
        del first
        for batch in islice(iterator, LOOKED_AT - 1):
            if node is not None:
                self._look_at(node, batch)
            yield batch
        yield from iterator

    def _first(self, iterator: Iterator[T]) -> T:
        if self._thread is None:
            return next(iterator)
        begin = clock.monotonic_ns()
        self._thread.join()
        assert self._outcome is not None
        (good, outcome), self._outcome = self._outcome, None
        _handed(iterator, begin)
        if not good:
            raise outcome
        first: T = outcome
        return first

    def _learn(self, batch: Any) -> Node | None:
        """Leave the description of the first batch to the next attempt."""
        try:
            if self._batch is not None:
                self._compare(batch)
            if not self._learned.known:
                return None
            node = describe(batch)
            if self._earlier is not None:
                inherit(node, self._earlier)
            if node != self._earlier:
                self._learned.write(node)
            if self._keep:
                self._learned.write_values(list(tensors_in(batch)))
        except UndescribableError as error:
            self.notes.append(f"the batch cannot be described for the next attempt, it holds {error}: pass make=")
        except Exception as error:  # noqa: BLE001 - the guard's rule
            guard.fault("ett.first_batch: nothing is learned for the next attempt", error)
        else:
            return node
        return None

    def _look_at(self, node: Node, batch: Any) -> None:
        try:
            if widen(node, signature_of(batch)):
                self._learned.write(node)
        except Exception as error:  # noqa: BLE001 - the guard's rule
            guard.fault("ett.first_batch: dimensions that vary are not learned", error)

    def _compare(self, batch: Any) -> None:
        made, real = signature_of(self._batch), signature_of(batch)
        self._batch = None  # it has served
        if made != real:
            text = "the compile batch had other shapes than the real one, which may have been compiled for again"
            self.notes.append(text)
            recorder.note(f"ett.first_batch: {text}: {_differences(made, real)}")


def _differences(made: Any, real: Any) -> str:
    if len(made) != len(real):
        return f"{len(made)} tensors, not {len(real)}"
    return "; ".join(
        f"tensor {n}: {one[0]} {list(one[1])}, not {other[0]} {list(other[1])}"
        for n, (one, other) in enumerate(zip(made, real, strict=True))
        if one != other
    )


def _handed(iterator: Any, begin: int) -> None:
    """Record that the program waited for the first batch since `begin`, which another thread took from the loader."""
    if recorder.off:
        return
    try:
        from ettrain.record.hooks.data import taken_elsewhere

        taken_elsewhere(iterator, begin)
    except Exception as error:  # noqa: BLE001 - the guard's rule
        guard.fault("ett.first_batch", error)


def first_batch(
    loader: Iterable[T],
    *,
    make: Callable[[], Any] | None = None,
    schema: str | Path | None = None,
    keep: bool = False,
    name: str = "batch",
    background: bool | None = None,
) -> FirstBatch[T]:
    """Start a loader and take its first batch in the background; meanwhile `compile_batch` is there to compile with.

    The compile batch comes from `make`, else from what an earlier attempt of this job under `ett run` recorded of its first batch, else
    from the first items of the loader's dataset. Iterate over the result in place of the loader: the batches are the same, bit for bit,
    and what is drawn from the global random generators is drawn here, as `iter(loader)` draws it.

    Args:
        loader: torch's DataLoader, or any iterable.
        make: makes a batch like the real ones.
        schema: file of the description, in place of the job's own.
        keep: store the real first batch itself for the next attempt, for operators that no made-up values satisfy.
        name: tells the batches of several loaders of one program apart.
        background: take the first batch on a thread. By default only where the loader has worker processes: code of a dataset that runs
            in this process may draw from the same random generators as the program. Pass True if it does not.
    Returns:
        The loader under way.
    """
    rank = rank_of_environment()[0] or 0
    learned = Learned.of_job(name, rank) if schema is None else Learned(Path(schema), rank)
    return FirstBatch(loader, make=make, learned=learned, keep=keep, background=background)

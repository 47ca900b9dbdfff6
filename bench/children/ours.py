"""ettrain's side of `bench/recorder.py`: `ett.step`, `ett.stage`, or all zero-code hooks of a step. Runs with a job's folder in the environment.

The hooks are installed on stub leaf modules by the very functions that install them on torch's. What is timed is the part they add:
`hooked` is a batch, a backward and an optimizer's post hook of stubs that do nothing, `bare` is the same without the hooks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from bursts import serve


def explicit() -> dict[str, Callable[[int], Any]]:
    """`ett.step(n)` and `with ett.stage(...)`."""
    import ettrain as ett

    def stage(number: int) -> None:
        with ett.stage("preproc_creation"):
            pass

    return {"step": ett.step, "stage": stage}


def hooks() -> dict[str, Callable[[int], Any]]:
    """A step of stubs with and without the hooks."""
    from ettrain.record.hooks import data, training

    autograd, loaders, optim = map(ModuleType, ("torch.autograd", "torch.utils.data.dataloader", "torch.optim.optimizer"))
    bare_backward = autograd.backward = autograd.grad = _nothing
    loader_class, iterator_class = _loader_classes()
    bare_iterator = _loader_classes()[1]()
    loaders.DataLoader, loaders._BaseDataLoaderIter = loader_class, iterator_class
    post_hooks: list[Callable[..., Any]] = []
    optim.register_optimizer_step_post_hook = post_hooks.append
    data.on_dataloader(loaders)
    training.on_autograd(autograd)
    training.on_optimizer(optim)
    iterator = iter(loader_class())
    backward, (stepped,), optimizer = autograd.backward, post_hooks, _Optimizer()

    def hooked(number: int) -> None:
        next(iterator)
        backward(None)
        stepped(optimizer, (), {})

    def bare(number: int) -> None:
        next(bare_iterator)
        bare_backward(None)

    return {"hooked": hooked, "bare": bare}


class _Optimizer:
    """Stands for an optimizer."""


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Stands for a backward pass."""


def _loader_classes() -> tuple[Any, Any]:
    class Iterator:
        def __next__(self) -> None:
            return None

    class Loader:
        def __iter__(self) -> Iterator:
            return Iterator()

    return Loader, Iterator


if __name__ == "__main__":
    serve({"explicit": explicit, "hooks": hooks}[sys.argv[1]]())

"""`ett.warm_compile`: compile a training step by running it once ahead of the training, without changing anything."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from ettrain import clock
from ettrain.boost import generators
from ettrain.boost.private import graphs_compiled
from ettrain.boost.warm.found import Found
from ettrain.boost.warm.kept import Keeper
from ettrain.errors import EttrainError
from ettrain.record.pause import paused


@dataclass(slots=True, kw_only=True)
class Warmed:
    """What came of a warm step."""

    ran: bool = False
    """Whether the step ran to its end, on every rank."""
    seconds: float = 0.0
    """How long it took, the copying included."""
    graphs: int | None = None
    """Graphs that torch.compile made meanwhile; None where torch does not tell."""
    error: Exception | None = None
    """What went wrong in it; everything is as it was before all the same."""
    guarantee: bool = False
    """Whether everything that the step can have changed is as it was before, as far as can be told; `notes` say why not."""
    notes: list[str] = field(default_factory=list)
    """What the user should know."""
    protected: tuple[str, ...] = ()
    """Class names of the modules, optimizers, schedulers and scalers whose values were put back."""


def warm_compile(
    step: Callable[[Any], Any],
    batch: Any,
    *,
    model: Any = None,
    optimizer: Any = None,
    protect: Iterable[Any] = (),
    strict: bool = False,
) -> Warmed:
    """Run `step(batch)` once so that all it compiles is compiled, then put everything back as it was.

    Put back: parameters, buffers, gradients, optimizer state, schedulers, scalers, random generators, training mode, plain attributes of
    the program's own modules and of the object that `step` is a method of. Not undone: files, prints, network traffic, and what
    hooks or objects of other kinds keep for themselves.

    Under torch.distributed every rank must call it, at the same place: they agree first that each has a batch.

    Args:
        step: one whole training step: forward, backward, optimizers.
        batch: what to call it with, e.g. `ett.first_batch(loader).compile_batch`; None = do nothing.
        model: modules that it trains, one or a list; found by themselves where the step names them.
        optimizer: the same for optimizers.
        protect: further objects to put back: schedulers, scalers, or any object with attributes.
        strict: raise what goes wrong, instead of going on without.
    Returns:
        What came of it. `guarantee` is False where something may have changed, and `notes` say what.
    Raises:
        Exception: with `strict`, what the step raised, after everything was put back.
        EttrainError: what was kept could not be put back; training on would train from another state.
    """
    result = Warmed()
    begin = clock.monotonic_ns()
    with paused("warm step"):
        _warm(step, batch, (model, optimizer, list(protect)), result)
    result.seconds = (clock.monotonic_ns() - begin) / 1e9
    if result.error is not None and strict:
        raise result.error
    if batch is not None:
        _tell(result)
    return result


def _warm(step: Callable[[Any], Any], batch: Any, given: Iterable[Any], result: Warmed) -> None:
    found, keeper = _prepared(step, batch, given, result)
    if not _agreed(ready=keeper is not None):
        result.guarantee = True
        if keeper is not None:
            result.notes.append("another rank was not ready for the warm step, so no rank ran it")
            keeper.forget()
        return
    assert found is not None
    assert keeper is not None
    states, before = generators.take(), graphs_compiled()
    try:
        step(batch)
        result.ran = True
    except Exception as error:  # noqa: BLE001 - the user's step, on a batch that is not theirs; told in the result
        result.error = error
    finally:
        try:
            _judge(found, keeper, result)
            generators.put_back(states)
        finally:
            _put_back(keeper, result)
    after = graphs_compiled()
    result.graphs = None if before is None or after is None else after - before


def _prepared(step: Callable[[Any], Any], batch: Any, given: Iterable[Any], result: Warmed) -> tuple[Found | None, Keeper | None]:
    if batch is None:
        result.notes.append("no batch to run the step on")
        return None, None
    try:
        found = Found(step, given)
        result.protected = found.names()
        return found, found.keep_all()
    except Exception as error:  # noqa: BLE001 - foreign objects; nothing has run yet
        result.error = error
        return None, None


def _agreed(*, ready: bool) -> bool:
    """Whether every rank is ready: one that runs a step with collectives alone would wait for ever."""
    if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() < 2:
        return ready
    answers: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(answers, ready)
    return all(answers)


def _put_back(keeper: Keeper, result: Warmed) -> None:
    try:
        keeper.put_back()
    except Exception as error:
        raise EttrainError(
            f"ett.warm_compile could not put back what its step changed ({type(error).__name__}: {error}). "
            "Leave warm_compile out, or give it a step that does not touch this."
        ) from error
    finally:
        keeper.forget()
    if keeper.left_out:
        result.guarantee = False
        result.notes.append(f"changed and not put back, being too large: {', '.join(keeper.left_out)}. Leave them to the training loop")


def _judge(found: Found, keeper: Keeper, result: Warmed) -> None:
    """Whether all that changed will be as before; looked at while it is changed. Raises nothing."""
    try:
        notes = _doubts(found, keeper)
    except Exception as error:  # noqa: BLE001 - foreign tensors and modules
        notes = [f"what the step changed could not be looked at ({type(error).__name__}: {error})"]
    result.guarantee = not notes
    result.notes += notes


def _doubts(found: Found, keeper: Keeper) -> list[str]:
    notes = []
    if not found.modules:
        notes.append("no module was found that the step trains: pass model=")
    if not found.optimizers() and any(not _same(tensor, copy) for _, tensor, copy in keeper.copies):
        notes.append("parameters changed and no optimizer was found: if one keeps a state, pass it as optimizer= or in protect=")
    notes += [
        f"{name} has parameters of no module that was found, whose buffers are not protected: pass model=" for name in found.homeless()
    ]
    parallel = any(isinstance(module, DistributedDataParallel) for root in found.modules for module in root.modules())
    if parallel and distributed.get_world_size() > 2:
        notes.append("DDP has grouped its gradients anew: sums over more than two ranks may be rounded in another order in the first step")
    return notes


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(((one == other) | ((one != one) & (other != other))).all()) if one.layout == torch.strided else one is other  # noqa: PLR0124


def _tell(result: Warmed) -> None:
    """What the user should know, on stderr."""
    words = list(result.notes)
    if result.error is not None:
        words.insert(
            0, f"the warm step failed ({type(result.error).__name__}: {' '.join(str(result.error).split())[:300]}); its effects are undone"
        )
    if words:
        sys.stderr.write(f"ettrain: ett.warm_compile: {'; '.join(words)} (training goes on)\n")

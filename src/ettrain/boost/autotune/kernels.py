"""Pins for kernels under `@triton.autotune`: the winner is put where the autotuner keeps what it found, before it looks there.

The autotuner's cache is by its key: the values of the key arguments, then the dtypes. A key that a version of triton builds otherwise
is never looked up, and the search goes on as ever.
"""

from __future__ import annotations

from typing import Any

from ettrain.boost.autotune.pins import Pins
from ettrain.record.guard import guard
from ettrain.record.hooks.tuning import accelerator, config_name, kernel_name, triton_version
from ettrain.record.hooks.wrap import wraps
from ettrain.tuned import TRITON


def attach(module: Any, pins: Pins) -> None:
    """Wrap the autotuner's `run`."""
    run = module.Autotuner.run

    @wraps(run)
    def pinned_run(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            offer(self, args, kwargs, pins)
        except Exception as error:  # noqa: BLE001 - the guard's rule
            guard.fault("autotune pin", error)
        return run(self, *args, **kwargs)

    module.Autotuner.run = pinned_run


def offer(tuner: Any, args: tuple[Any, ...], kwargs: dict[str, Any], pins: Pins) -> None:
    """Put the winner for this call into the autotuner's cache, if there is one and the call is the first of its key."""
    if len(tuner.configs) < 2:
        return
    key = key_of(tuner, args, kwargs)
    if key in tuner.cache:
        return
    for winner in pins.fitting(TRITON, map(str, key), accelerator(), triton_version(), kernel_name(tuner)):
        same = [config for config in tuner.configs if config_name(config) == winner.winner]
        if len(same) == 1:
            tuner.cache[key] = same[0]
            pins.taken(winner)
        else:
            pins.ignored(winner, "several configurations are like it" if same else "it is not among the configurations offered")


def key_of(tuner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The autotuner's key of a call, as its `run` builds it."""
    named = {**dict(zip(tuner.arg_names, args, strict=False)), **kwargs}
    known = {name: value for name, value in named.items() if name in tuner.arg_names}
    key: list[Any] = [known[name] for name in tuner.keys if name in known]
    key += [str(value.dtype) for value in known.values() if hasattr(value, "dtype")]
    return tuple(key)

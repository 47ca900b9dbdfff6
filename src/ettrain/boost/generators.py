"""The global random generators of a process, Python's, numpy's and torch's: their states, taken, put back and compared."""

from __future__ import annotations

import sys
from typing import Any, Final

State = dict[str, Any]
_DEVICES: Final = ("cuda", "xpu")


def take(*, with_devices: bool = True) -> State:
    """The state of every global generator that is loaded."""
    state: State = {}
    random: Any = sys.modules.get("random")
    if random is not None and hasattr(random, "getstate"):
        state["random"] = random.getstate()
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is not None and hasattr(numpy, "get_state"):
        state["numpy.random"] = numpy.get_state(legacy=True)
    torch: Any = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_rng_state"):
        state["torch"] = torch.get_rng_state()
        if with_devices:
            state |= {f"torch.{kind}": getattr(torch, kind).get_rng_state_all() for kind in _DEVICES if _is_up(torch, kind)}
    return state


def put_back(state: State) -> None:
    """Set every generator in `state` to it."""
    if "random" in state:
        sys.modules["random"].setstate(state["random"])
    if "numpy.random" in state:
        sys.modules["numpy.random"].set_state(state["numpy.random"])
    torch: Any = sys.modules.get("torch")
    if "torch" in state:
        torch.set_rng_state(state["torch"])
    for kind in _DEVICES:
        if f"torch.{kind}" in state:
            getattr(torch, kind).set_rng_state_all(state[f"torch.{kind}"])


def moved(before: State, after: State) -> list[str]:
    """Names of the generators that were drawn from or seeded in between; one that was loaded in between counts as still."""
    return [name for name, state in before.items() if name in after and not _same(state, after[name])]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    if hasattr(one, "shape"):
        return bool(one.shape == other.shape and (one == other).all())
    return bool(one == other)


def _is_up(torch: Any, kind: str) -> bool:
    device = getattr(torch, kind, None)
    return device is not None and hasattr(device, "get_rng_state_all") and bool(device.is_initialized())

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
    """Set every generator in `state` to it; one that this process does not have is left out."""
    if "random" in state:
        sys.modules["random"].setstate(state["random"])
    if "numpy.random" in state and "numpy.random" in sys.modules:
        sys.modules["numpy.random"].set_state(state["numpy.random"])
    torch: Any = sys.modules.get("torch")
    if "torch" in state:
        torch.set_rng_state(state["torch"])
    for kind in _DEVICES:
        if f"torch.{kind}" in state and getattr(torch, kind).is_available():
            getattr(torch, kind).set_rng_state_all(state[f"torch.{kind}"])


def as_plain(state: State) -> dict[str, Any]:
    """The same in numbers, lists and tensors only, which `torch.load(weights_only=True)` reads."""
    plain = dict(state)
    if "numpy.random" in plain:
        name, keys, *rest = plain["numpy.random"]
        plain["numpy.random"] = [name, keys.tolist(), *rest]
    return plain


def from_plain(plain: dict[str, Any]) -> State:
    """What `as_plain` was made from."""
    state: State = dict(plain)
    if "random" in state:
        version, keys, gauss = state["random"]
        state["random"] = (version, tuple(keys), gauss)
    if "numpy.random" in state:
        state["numpy.random"] = tuple(state["numpy.random"])
    return state


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

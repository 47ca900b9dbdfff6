"""How much time should pass between two checkpoints, and what a choice costs.

All arguments and results are seconds (floats) unless their names say otherwise. In all of them a failure strikes at any instant alike
(exponential, mean time between failures `mttf_s`), `cost_s` is what one save keeps the training from running, and an interval is
training time from one save to the next, the save itself not counted. Not here: how often jobs fail (see `failures`), and when to save
in a running program (`boost.checkpoint.interval`).
"""

from __future__ import annotations

import math
from typing import Final

from ettrain.errors import UsageError

_ALWAYS: Final = 30.0
"""A save that costs so many times the mean time between failures never pays; the formula's answer is the latter by then."""
_SERIES: Final = 1e-3
_ROUNDS: Final = 60


def young(cost_s: float, mttf_s: float) -> float:
    """Best interval to first order: sqrt(2 cost mttf).

    Source: J. W. Young, CACM 17(9), 1974.
    """
    _check(cost_s=cost_s, mttf_s=mttf_s)
    return math.sqrt(2 * cost_s * mttf_s)


def daly(cost_s: float, mttf_s: float) -> float:
    """Best interval to higher order; `mttf_s` where a save costs twice that or more.

    Source: J. T. Daly, Future Generation Computer Systems 22(3), 2006, equation 37.
    """
    _check(cost_s=cost_s, mttf_s=mttf_s)
    if cost_s >= 2 * mttf_s:
        return mttf_s
    root = math.sqrt(cost_s / (2 * mttf_s))
    return math.sqrt(2 * cost_s * mttf_s) * (1 + root / 3 + root * root / 9) - cost_s


def exact(cost_s: float, mttf_s: float) -> float:
    """Best interval where failures may also strike during saves and restarts; how long a restart takes does not matter.

    The maximum of `efficiency`: mttf (1 + W(-exp(-1 - cost / mttf))), W being Lambert's. With u = interval / mttf that is the root of
    log(1 - u) + u + cost / mttf, which Newton's method reaches from the right without overshooting, since the function is concave.

    Source: derivative of Daly's complete model (see `efficiency`), set to 0.
    """
    _check(cost_s=cost_s, mttf_s=mttf_s)
    ratio = cost_s / mttf_s
    if ratio > _ALWAYS:
        return mttf_s
    u = min(math.sqrt(2 * ratio), 1 - math.exp(-1 - ratio))
    for _ in range(_ROUNDS):
        if u == 0:
            break
        step = (_log1p_plus(u) + ratio) * (1 - u) / u
        if abs(step) <= 1e-15 * u:
            break
        u += step
    return u * mttf_s


def _log1p_plus(u: float) -> float:
    """log(1 - u) + u, without the cancellation for small u."""
    if u > _SERIES:
        return math.log1p(-u) + u
    return -u * u * (1 / 2 + u * (1 / 3 + u * (1 / 4 + u * (1 / 5 + u / 6))))


def availability_optimal(cost_s: float, mttf_s: float, restart_s: float) -> float:
    """Best interval for the share of time in which the job is up and trains, restarts counted: sqrt(2 cost (mttf + restart) + cost^2).

    Source: own derivation, the maximum of interval / (interval + cost) * mttf / (mttf + restart + (interval + cost) / 2).
    """
    _check(cost_s=cost_s, mttf_s=mttf_s, restart_s=restart_s)
    return math.sqrt(2 * cost_s * (mttf_s + restart_s) + cost_s * cost_s)


def asynchronous(blocking_s: float, durable_s: float, mttf_s: float) -> float:
    """Best interval where a save goes on beside the training and the next one waits for it: max(durable, sqrt(2 blocking mttf)).

    Args:
        blocking_s: what a save keeps the training from running.
        durable_s: from a save's begin until it would survive a failure.
        mttf_s: mean time between failures.
    """
    _check(blocking_s=blocking_s, durable_s=durable_s, mttf_s=mttf_s)
    return max(durable_s, young(blocking_s, mttf_s))


def efficiency(interval_s: float, cost_s: float, mttf_s: float, restart_s: float = 0.0) -> float:
    """Share of the wall time, from 0 to 1, that is training which is not lost again, with saves that block.

    Source: Daly's complete model: interval / (mttf exp(restart / mttf) (exp((interval + cost) / mttf) - 1)).
    """
    _check(cost_s=cost_s, mttf_s=mttf_s, restart_s=restart_s)
    if interval_s <= 0:
        return 0.0
    try:
        return interval_s / (mttf_s * math.exp(restart_s / mttf_s) * math.expm1((interval_s + cost_s) / mttf_s))
    except OverflowError:
        return 0.0


def wasted_share(interval_s: float, cost_s: float, mttf_s: float, *, restart_s: float = 0.0, durable_s: float = 0.0) -> float:
    """Expected share of the time that saves and failures take, to first order: cost / interval + (interval / 2 + durable + restart) / mttf.

    Good where it is small; what loses more than a fifth should be asked of `efficiency`.

    Args:
        interval_s: between two saves.
        cost_s: what a save keeps the training from running.
        mttf_s: mean time between failures.
        restart_s: from a failure until training goes on; 0 = count only what the choice of an interval decides.
        durable_s: from a save's begin until it would survive a failure: what was trained in that time is lost as well.
    """
    _check(cost_s=cost_s, mttf_s=mttf_s, restart_s=restart_s, durable_s=durable_s)
    if interval_s <= 0:
        raise UsageError(f"an interval must be longer than 0, got {interval_s!r}")
    return cost_s / interval_s + (interval_s / 2 + durable_s + restart_s) / mttf_s


def _check(**seconds: float) -> None:
    for name, value in seconds.items():
        if not (math.isfinite(value) and value >= 0 and (value > 0 or name != "mttf_s")):
            raise UsageError(f"{name} must be a number of seconds{' above 0' if name == 'mttf_s' else ', 0 or more'}, got {value!r}")

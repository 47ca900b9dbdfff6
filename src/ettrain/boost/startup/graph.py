"""The plan of a start: its stages, what each needs, the order in which they may run, and the chain that decided how long it took.

Pure: no thread, clock or torch. A plan that cannot run is refused as a whole, before any of its stages begins.
"""

from __future__ import annotations

import inspect
import itertools
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ettrain.errors import UsageError

THREAD: Final = "thread"
MAIN: Final = "main"
COLLECTIVE: Final = "collective"
PROCESS: Final = "process"

_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage, as it was declared."""

    name: str
    call: Callable[..., Any]
    needs: tuple[str, ...]
    """Names of the stages whose results it takes: its parameters, save those with a default."""
    lane: str
    """Where it runs: `thread`, `main`, `collective` or `process`."""
    collective: bool
    rng: bool
    bill: str
    """Stage of the lifecycle that its time is billed to."""
    where: str
    """`file:line` of the function."""

    def __str__(self) -> str:
        return f"stage '{self.name}' ({self.where})"


def stage_of(function: Callable[..., Any], *, collective: bool, process: bool, main: bool, rng: bool, bill: str) -> Stage:
    """The stage that a function declares.

    Raises:
        UsageError: it cannot be a stage, or what is asked of it contradicts itself.
    """
    name = getattr(function, "__name__", "")
    code = getattr(inspect.unwrap(function), "__code__", None)
    where = f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(function)
    if not name.isidentifier():
        raise UsageError(f"{where}: a stage is a function with a name of its own, by which others depend on it")
    if process and (collective or main or rng):
        asked = "collective" if collective else "main" if main else "rng"
        raise UsageError(
            f"stage '{name}' ({where}): process=True and {asked}=True exclude each other: another process has no part in this one's "
            "process group, main thread or random generators. Drop one of them."
        )
    if inspect.iscoroutinefunction(function):
        raise UsageError(f"stage '{name}' ({where}) is a coroutine, and stages are called. Run its event loop inside: asyncio.run(...)")
    needs = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in _NAMED:
            raise UsageError(f"stage '{name}' ({where}): parameter '{parameter}' names no stage. Name every dependency.")
        if parameter.default is inspect.Parameter.empty:
            needs.append(parameter.name)
    lane = MAIN if main else PROCESS if process else COLLECTIVE if collective else THREAD
    return Stage(name=name, call=function, needs=tuple(needs), lane=lane, collective=collective, rng=rng, bill=bill or name, where=where)


@dataclass(frozen=True, slots=True)
class Plan:
    """A graph that can run."""

    stages: tuple[Stage, ...]
    """As declared."""
    needs: tuple[tuple[int, ...], ...]
    """Per stage: indices of the stages whose results it takes."""
    after: tuple[tuple[int, ...], ...]
    """Per stage: indices of further stages that must have ended, for the sake of an order that is the same on every run and rank."""
    order: tuple[int, ...]
    """The stages one after another, each after all it waits for, otherwise as declared."""

    def waits_for(self, index: int) -> tuple[int, ...]:
        """All that must have ended before the stage begins."""
        return self.needs[index] + self.after[index]


def plan_of(stages: Sequence[Stage]) -> Plan:
    """Check the stages and bring them into an order.

    Raises:
        UsageError: a dependency is unknown or goes round in a circle, or a stage for another process cannot go there.
    """
    index = {stage.name: number for number, stage in enumerate(stages)}
    for stage in stages:
        for need in stage.needs:
            if need not in index:
                known = ", ".join(other for other in index if other != stage.name) or "none"
                raise UsageError(
                    f"{stage} needs '{need}', which is no stage. Stages: {known}. Declare it with @start.stage, or rename the parameter."
                )
        if stage.lane == PROCESS:
            _check_picklable(stage)
    needs = tuple(tuple(index[need] for need in stage.needs) for stage in stages)
    after = _fixed_orders(stages, needs)
    return Plan(tuple(stages), needs, after, _sorted(stages, needs, after))


def _check_picklable(stage: Stage) -> None:
    try:
        pickle.dumps(stage.call)
    except Exception as error:
        raise UsageError(f"{stage} runs in another process and must be a function of a module, not one inside another: {error}") from error


def _fixed_orders(stages: Sequence[Stage], needs: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """Collectives one after another as declared, and those that draw random numbers too."""
    after: list[list[int]] = [[] for _ in stages]
    for chosen in ([s.collective for s in stages], [s.rng for s in stages]):
        last = -1
        for number, member in enumerate(chosen):
            if not member:
                continue
            if last >= 0 and last not in needs[number] and last not in after[number]:
                after[number].append(last)
            last = number
    return tuple(map(tuple, after))


def _sorted(stages: Sequence[Stage], needs: tuple[tuple[int, ...], ...], after: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    order: list[int] = []
    done: set[int] = set()
    while len(order) < len(stages):
        following = next((i for i in range(len(stages)) if i not in done and done.issuperset(needs[i] + after[i])), None)
        if following is None:
            raise UsageError(_circle(stages, needs, after, done))
        order.append(following)
        done.add(following)
    return tuple(order)


def _circle(stages: Sequence[Stage], needs: tuple[tuple[int, ...], ...], after: tuple[tuple[int, ...], ...], done: set[int]) -> str:
    """In words: one circle among the stages that cannot be ordered."""
    path = [next(i for i in range(len(stages)) if i not in done)]
    while True:
        following = next(i for i in needs[path[-1]] + after[path[-1]] if i not in done)
        if following in path:
            circle = [*path[path.index(following) :], following]
            break
        path.append(following)
    links = []
    for one, other in itertools.pairwise(circle):
        kind = "collective=True" if stages[one].collective and stages[other].collective else "rng=True"
        how = "needs" if other in needs[one] else f"is declared after, and as {kind} runs after,"
        links.append(f"'{stages[one].name}' {how} '{stages[other].name}'")
    hint = " Declare them in the order in which they need each other." if any(" is declared " in link for link in links) else ""
    return f"the stages go round in a circle: {'; '.join(links)} ({stages[circle[0]].where}).{hint}"


def critical_chain(waits_for: Callable[[int], tuple[int, ...]], ends: Mapping[int, int], last: int | None = None) -> list[int]:
    """The stages that decided when the run ended, first to last: from the last one back to what each waited for longest.

    Args:
        waits_for: what each stage had to wait for.
        ends: when each stage ended, of those that did.
        last: where the chain ends, if not at the stage that ended last.
    """
    if last is None:
        last = max(ends, key=lambda index: ends[index], default=None)
    chain: list[int] = []
    while last is not None:
        chain.append(last)
        last = max((i for i in waits_for(last) if i in ends), key=lambda index: ends[index], default=None)
    chain.reverse()
    return chain

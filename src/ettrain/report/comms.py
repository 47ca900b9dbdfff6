"""The collectives of a job's latest recorded start, put together over its ranks: what, from where, what could be avoided, who waited.

Counts and bytes are those of one rank (the most that any has), since collectives are issued by all members alike. Time is the host's time
in the calls. A rank waits for what it spends longer in the same calls than the rank of its group that is in them shortest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ettrain.account.history import Comm, CommGroup, JobHistory, RankHistory
from ettrain.report.commrules import RULES, Rule, rule_of
from ettrain.report.units import clean, seconds

DUPLICATE_GROUPS: Final = "duplicate_groups"
SECOND_MESH: Final = "second_mesh"
CREATIONS: Final = ("new_group", "split_group", "init_process_group")


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Calls of one kind from one place, all ranks. Times in ns."""

    op: str
    place: Comm
    """Any of them: it has the names of the place."""
    size: int
    """Ranks of the largest group."""
    ranks: int
    """Ranks that issued them."""
    n: int
    wire: int
    bytes: int
    asyncs: int
    slowest_ns: int
    wait_ns: int
    """By how much a rank was in them longer than the quickest of its group, at most."""
    rule: Rule | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A process group."""

    group: CommGroup
    duplicate_of: str
    """Name of the first group of the same ranks and backend; '' = it is the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """What one rule could avoid."""

    key: str
    what: str
    cure: str
    left: str
    n: int
    wire: int
    bytes: int
    ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """One rank's time in collectives before its first iteration."""

    rank: int
    ns: int
    wait_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTraffic:
    """The whole."""

    attempt: int
    ranks: int
    calls: tuple[Calls, ...]
    """Most time first."""
    groups: tuple[Group, ...]
    """Of the rank that is a member of most, in the order of making."""
    savings: tuple[Saving, ...]
    waits: tuple[Waiting, ...]
    """By rank."""

    @property
    def setup(self) -> tuple[Calls, ...]:
        """Without the traffic of the first iteration itself."""
        return tuple(calls for calls in self.calls if not calls.place.late)


def start_traffic(job: JobHistory) -> StartTraffic | None:
    """The traffic of the latest attempt that recorded any; None where none did."""
    for number in range(len(job.attempts) - 1, -1, -1):
        ranks = [rank for rank in job.attempts[number].ranks if rank.comms]
        if ranks:
            return _of(number, ranks)
    return None


def _of(number: int, ranks: list[RankHistory]) -> StartTraffic:
    by_kind: dict[tuple[str, ...], dict[int, list[Comm]]] = {}
    for rank in ranks:
        for comm in rank.comms:
            by_kind.setdefault(_kind(comm), {}).setdefault(rank.rank, []).append(comm)
    calls = sorted((_calls(found) for found in by_kind.values()), key=lambda one: (-one.slowest_ns, one.place.start))
    groups = _groups(max(ranks, key=lambda rank: len(rank.groups)).groups)
    waits = _waits((found for found in by_kind.values() if not _is_late(found)), [rank.rank for rank in ranks])
    return StartTraffic(attempt=number, ranks=len(ranks), calls=tuple(calls), groups=groups, savings=_savings(calls, groups), waits=waits)


def _kind(comm: Comm) -> tuple[str, ...]:
    """What makes calls of several ranks and groups the same; a group that a rank is no member of is another matter."""
    outside = "outside" if comm.op in CREATIONS and not comm.group else ""
    return (comm.op, comm.via, comm.site, comm.user, comm.api, "late" if comm.late else "", outside)


def _is_late(by_rank: dict[int, list[Comm]]) -> bool:
    """Whether calls of one kind belong to the first iteration."""
    return any(comm.late for comms in by_rank.values() for comm in comms)


def _calls(by_rank: dict[int, list[Comm]]) -> Calls:
    def most(field: str) -> int:
        return max(sum(int(getattr(comm, field)) for comm in comms) for comms in by_rank.values())

    times = [sum(comm.ns for comm in comms) for comms in by_rank.values()]
    every = [comm for comms in by_rank.values() for comm in comms]
    first = every[0]
    return Calls(
        op=first.op,
        place=first,
        size=max(comm.size for comm in every),
        ranks=len(by_rank),
        n=most("n"),
        wire=most("wire"),
        bytes=most("bytes"),
        asyncs=most("asyncs"),
        slowest_ns=max(times),
        wait_ns=max(max(spent.values()) - min(spent.values()) for spent in _by_group(by_rank)),
        rule=rule_of(first),
    )


def _groups(groups: Iterable[CommGroup]) -> tuple[Group, ...]:
    first: dict[tuple[str, str], str] = {}
    found = []
    for group in groups:
        name = first.setdefault((group.same, group.backend), group.name)
        found.append(Group(group=group, duplicate_of="" if name == group.name else name))
    return tuple(found)


def _savings(calls: list[Calls], groups: tuple[Group, ...]) -> tuple[Saving, ...]:
    found = []
    for rule in RULES:
        met = [one for one in calls if one.rule is rule and not one.place.late]
        if met:
            found.append(_saving(rule.key, rule.what, rule.cure, rule.left, met))
    made = [one for one in calls if one.op in CREATIONS[:2] and one.place.group]
    found += _group_savings(made, groups)
    return tuple(sorted(found, key=lambda saving: -saving.ns))


def _group_savings(made: list[Calls], groups: tuple[Group, ...]) -> Iterable[Saving]:
    again = [group.group for group in groups if group.duplicate_of]
    if again:
        ns = sum(one.slowest_ns for one in made) * len(again) // max(1, sum(one.n for one in made))
        cure = "ettrain.process_groups(ranks) hands out one group per set of ranks"
        yield Saving(
            key=DUPLICATE_GROUPS,
            what="groups of ranks that have a group already",
            cure=cure,
            left="none",
            n=len(again),
            wire=0,
            bytes=0,
            ns=ns,
        )
    meshes = [one for one in made if "device_mesh" in one.place.via]
    sites = sorted({one.place.site for one in meshes}, key=lambda site: min(one.place.start for one in meshes if one.place.site == site))
    if len(sites) > 1:
        later = [one for one in meshes if one.place.site != sites[0]]
        cure = "make one mesh and slice it, or build the next from the same groups: ettrain.boost.comms.mesh"
        yield _saving(SECOND_MESH, "a further init_device_mesh makes its groups anew", cure, "none", later)


def _saving(key: str, what: str, cure: str, left: str, met: list[Calls]) -> Saving:
    n, wire, moved, ns = (sum(getattr(one, field) for one in met) for field in ("n", "wire", "bytes", "slowest_ns"))
    return Saving(key=key, what=what, cure=cure, left=left, n=n, wire=wire, bytes=moved, ns=ns)


def _waits(kinds: Iterable[dict[int, list[Comm]]], ranks: list[int]) -> tuple[Waiting, ...]:
    spent, waited = dict.fromkeys(ranks, 0), dict.fromkeys(ranks, 0)
    for by_rank in kinds:
        for times in _by_group(by_rank):
            for rank, ns in times.items():
                spent[rank] += ns
                waited[rank] += ns - min(times.values())
    return tuple(Waiting(rank=rank, ns=spent[rank], wait_ns=waited[rank]) for rank in sorted(spent))


def _by_group(by_rank: dict[int, list[Comm]]) -> list[dict[int, int]]:
    """Per group the time of its ranks in calls of one kind."""
    found: dict[str, dict[int, int]] = {}
    for rank, comms in by_rank.items():
        for comm in comms:
            times = found.setdefault(comm.group, {})
            times[rank] = times.get(rank, 0) + comm.ns
    return list(found.values())


# ---- JSON


def comms_dict(traffic: StartTraffic | None) -> dict[str, object] | None:
    """The traffic in JSON's own types; docs/report-json.md."""
    if traffic is None:
        return None
    return {
        "attempt": traffic.attempt,
        "ranks": traffic.ranks,
        "calls": sum(calls.n for calls in traffic.setup),
        "operations": [_calls_dict(calls) for calls in traffic.calls],
        "groups": [_group_dict(group) for group in traffic.groups],
        "avoidable": [_saving_dict(saving) for saving in traffic.savings],
        "waits": [{"rank": wait.rank, "time_s": seconds(wait.ns), "wait_s": seconds(wait.wait_ns)} for wait in traffic.waits],
    }


def _calls_dict(calls: Calls) -> dict[str, object]:
    return {
        "op": clean(calls.op),
        "group_size": calls.size,
        "ranks": calls.ranks,
        "calls": calls.n,
        "wire": calls.wire,
        "bytes": calls.bytes,
        "async": calls.asyncs,
        "time_s": seconds(calls.slowest_ns),
        "wait_s": seconds(calls.wait_ns),
        "first_iteration": calls.place.late,
        "via": clean(calls.place.via),
        "site": clean(calls.place.site),
        "user": clean(calls.place.user or calls.place.site),
        "api": clean(calls.place.api),
        "avoidable": None if calls.rule is None else calls.rule.key,
    }


def _group_dict(group: Group) -> dict[str, object]:
    told = group.group
    return {
        "name": clean(told.name),
        "size": told.size,
        "ranks": clean(told.ranks),
        "backend": clean(told.backend),
        "desc": clean(told.desc),
        "duplicate_of": clean(group.duplicate_of) or None,
    }


def _saving_dict(saving: Saving) -> dict[str, object]:
    return {
        "key": saving.key,
        "what": saving.what,
        "cure": saving.cure,
        "left": saving.left,
        "calls": saving.n,
        "wire": saving.wire,
        "bytes": saving.bytes,
        "time_s": seconds(saving.ns),
    }

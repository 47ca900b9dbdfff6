"""How the clocks of a job's hosts relate: one offset per boot, from its monotonic clock to the job's clock.

The job's clock is the wall clock of the first supervisor's host, as it stood when its first journal opened; later steps of any
wall clock change nothing. Hosts whose ranks finished the same steps together are shifted onto it. Not here: files.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Final

from ettrain.events import Record

CLOCK_TOLERANCE_NS: Final = 10_000_000

Shared = tuple[tuple[str, int], str, int]
"""((attempt, step), boot, monotonic ns): one rank's end of a step that synchronised all ranks."""


def boot_of(head: Record | None) -> str:
    """The boot that a journal's head names; '' where it names none."""
    return str((head or {}).get("boot", ""))


class HostClocks:
    """Learns offsets from the heads of journals, and corrections from instants that hosts shared. The order of learning does not matter."""

    def __init__(self) -> None:
        self._pairs: dict[str, tuple[int, int]] = {}
        self._corrections: dict[str, int] = {}

    def see(self, head: Record) -> None:
        """Take the clock pair of a journal's head; the earliest of each boot counts."""
        boot, pair = boot_of(head), (int(head["t"]), int(head["wall"]))
        if boot not in self._pairs or pair < self._pairs[boot]:
            self._pairs[boot] = pair

    def knows(self, boot: str) -> bool:
        """Whether that boot wrote anything of this job."""
        return boot in self._pairs

    def offset(self, boot: str) -> int:
        """Job time minus monotonic time of that boot; 0 for a boot that wrote nothing."""
        t, wall = self._pairs.get(boot, (0, 0))
        return wall - t + self._corrections.get(boot, 0)

    @property
    def largest_correction_ns(self) -> int:
        """Largest shift of any host."""
        return max(map(abs, self._corrections.values()), default=0)

    def correct(self, shared: Iterable[Shared], reference: str) -> None:
        """Shift every boot that is linked to the reference, directly or through others, by shared instants.

        Args:
            shared: ends of steps; those of one (attempt, step) are the same instant.
            reference: the boot whose clock is the job's.
        """
        links = self._links(shared, reference)
        corrections: dict[str, int] = {}
        seen, queue = {reference}, [reference]
        while queue:
            near = queue.pop(0)
            for far in sorted(links.get(near, {})):
                if far not in seen:
                    seen.add(far)
                    queue.append(far)
                    corrections[far] = corrections.get(near, 0) + int(median(links[near][far]))
        self._corrections = {boot: ns for boot, ns in corrections.items() if abs(ns) > CLOCK_TOLERANCE_NS}

    def _links(self, shared: Iterable[Shared], reference: str) -> dict[str, dict[str, list[int]]]:
        """near boot -> far boot -> what to add to the far one's uncorrected clock, by each shared instant."""
        groups: dict[tuple[str, int], dict[str, list[int]]] = {}
        for key, boot, t in shared:
            base = self._pairs[boot][1] - self._pairs[boot][0]
            groups.setdefault(key, {}).setdefault(boot, []).append(t + base)
        links: dict[str, dict[str, list[int]]] = {}
        for by_boot in groups.values():
            near = reference if reference in by_boot else min(by_boot)
            for far in by_boot:
                if far != near:
                    ns = int(median(by_boot[near])) - int(median(by_boot[far]))
                    links.setdefault(near, {}).setdefault(far, []).append(ns)
                    links.setdefault(far, {}).setdefault(near, []).append(-ns)
        return links

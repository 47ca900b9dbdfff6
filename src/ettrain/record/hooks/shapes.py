"""What dynamo has seen of every size and number that enters a compiled function: what varied, what never did.

torch keeps it for its profile of dynamic shapes; after each compilation the difference is written down, so that a rank that is
killed loses nothing. Not here: what follows from it (`account.dynamic`), and any influence on torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ettrain.events import Record
from ettrain.record.hooks import private
from ettrain.record.hooks.compiling import compilation
from ettrain.record.recorder import recorder

MAX_SOURCES: Final = 5000
"""So many sources of one process are written down, each as often as what is known of it changes."""
MAX_TEXT: Final = 3000
"""So many characters of them go into one record."""
MAX_VALUE: Final = 3500
"""A longer list of dynamic sources is not written down in full, which a reader can tell."""
MORE: Final = "*"
"""Stands for all those that are not."""
RANK, INTEGER, FLOAT, UNKNOWN = "rank", "int", "float", "?"
"""Ways in which a whole source varied."""

Seen = list[int | None] | int | float | str
"""A tensor's sizes with None where they varied; a number; or how the whole varied."""


class Sizes:
    """What was written so far."""

    def __init__(self) -> None:
        self.found: Mapping[str, Any] | None = None
        self.reset()

    def reset(self) -> None:
        """As new, in a forked child."""
        self._known: dict[Any, dict[str, Seen]] = {}
        self._written = 0
        self._said_applied = False

    def look(self, done: Record) -> None:
        """Write what the compilation just done has changed; `done` is its span."""
        if self.found is None:
            return
        if not self._said_applied:
            self._said_applied = True
            self._say_applied(done["t"])
        for code, state in list(self.found["get_code_state"]().items()):
            known = self._known.setdefault(code, {})
            fresh: dict[str, Seen] = {}
            was: dict[str, Seen] = {}
            for source, entry in list(state.automatic_dynamic.items()):
                before = known.get(source)
                seen = self._seen(entry, before)
                if seen == before and type(seen) is type(before):
                    continue
                fresh[source] = known[source] = seen
                if before is not None:
                    was[source] = before
            place = {"part": code.name, "where": f"{code.filename}:{code.firstlineno}"}
            for some in _in_pieces(fresh):
                self._written += len(some)
                if self._written > MAX_SOURCES:
                    recorder.emit({"k": "dims", "t": done["t"], **place, "seen": {MORE: UNKNOWN}})
                    self.found = None
                    return
                then = {source: was[source] for source in some if source in was}
                recorder.emit({"k": "dims", "t": done["t"], **place, "seen": some, **({"was": then} if then else {})})

    def _say_applied(self, t: int) -> None:
        """Sources that were made dynamic from the start show no variation: say which those are."""
        import torch

        value = str(getattr(torch.compiler.config, "dynamic_sources", "") or "")
        if value:
            recorder.emit({"k": "dims", "t": t, "applied": value if len(value) <= MAX_VALUE else None})

    def _seen(self, entry: Any, before: Seen | None) -> Seen:
        dynamic = self.found["auto_dynamic"] if self.found else None
        if isinstance(entry.size, tuple):
            return [size if type(size) is int else None for size in entry.size]
        if isinstance(entry.scalar, int | float):
            return entry.scalar
        if entry.scalar is not dynamic:
            return UNKNOWN
        if isinstance(before, str):
            return before
        if isinstance(before, list):
            return RANK
        return INTEGER if type(before) is int else FLOAT if type(before) is float else UNKNOWN


def _in_pieces(seen: dict[str, Seen]) -> Iterator[dict[str, Seen]]:
    """The same in pieces that fit a journal line each."""
    piece: dict[str, Seen] = {}
    length = 0
    for source, value in seen.items():
        size = 2 * len(json.dumps(source)) + 2 * len(json.dumps(value)) + 8
        if piece and length + size > MAX_TEXT:
            yield piece
            piece, length = {}, 0
        piece[source] = value
        length += size
    if piece:
        yield piece


sizes = Sizes()
recorder.at_fork.append(sizes.reset)


def on_pgo(module: Any) -> None:
    """torch's profile of dynamic shapes, asked after each compilation."""
    sizes.found = private(module)
    if sizes.found is not None:
        compilation.after = sizes.look

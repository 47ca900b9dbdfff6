"""The positions of all ranks of a checkpoint, side by side: what they must agree on, and what each has for itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ettrain.boost.feed.streams import Luggage
from ettrain.errors import UsageError

State = dict[str, Any]
"""What `Feed.state` gives on one rank."""


def own_state_of(states: Sequence[State], rank: int, world: int, what: str) -> State:
    """The state of this very rank.

    Raises:
        UsageError: the checkpoint is of another number of ranks.
    """
    if len(states) != world:
        raise UsageError(
            f"follow: the checkpoint is of {len(states)} ranks in the middle of an epoch, this job has {world}, and {what}. "
            f"Resume with {len(states)} ranks; between two epochs their number may change."
        )
    return states[rank]


def has_state(state: State) -> bool:
    """Whether a map-style dataset has a state of its own."""
    return state.get("stream") is not None or any("stream" in luggage for luggage in state["luggage"].values())


def streams_of(states: Sequence[State]) -> Iterator[Luggage]:
    """The states of the dataset in all places where this epoch was iterated over."""
    for state in states:
        yield state.get("stream") or {}
        for luggage in state["luggage"].values():
            if not luggage["over"]:
                yield luggage.get("stream", {})


def refuse_disagreeing(states: Sequence[State]) -> None:
    """Refuse states of ranks that do not stand at the same place of the same order."""
    places = [(state["epoch"], state["begun"], state["plan"]["done"], (state["plan"]["order"] or {}).get("crc32")) for state in states]
    for rank, place in enumerate(places):
        if place[:3] != places[0][:3]:
            raise UsageError(
                f"follow: rank 0 of the checkpoint stands at sample {places[0][2]} of epoch {places[0][0]}, rank {rank} at sample {place[2]} of epoch "
                f"{place[0]}: their states are not of the same step. Use a checkpoint that all ranks took after the same step."
            )
        if place != places[0]:
            raise UsageError(
                f"follow: rank 0 and rank {rank} of the checkpoint had different orders of the epoch, so samples were trained twice and others never. "
                "Let all ranks' samplers draw the same order: the same seed, and set_epoch on each."
            )

"""Pins for Inductor's choices: a filter of the choices, registered through its own interface, leaves the winner alone to be chosen.

A single choice is taken without being measured. Where no winner fits, or several do, the choices stay as they were.
"""

from __future__ import annotations

from typing import Any

from ettrain.boost.autotune.pins import Pins
from ettrain.record.guard import guard
from ettrain.record.hooks.tuning import choice_config, choice_name, device_of, inputs_of, torch_version
from ettrain.record.recorder import recorder
from ettrain.tuned import GEMM


def attach(module: Any, pins: Pins) -> None:
    """Register the filter."""
    register = getattr(module, "add_preprocessing_fn", None)
    if register is None:
        recorder.note("not pinned: this torch has no torch._inductor.select_algorithm.add_preprocessing_fn")
        return

    def winner_alone(choices: list[Any]) -> list[Any]:
        try:
            return chosen(choices, pins)
        except Exception as error:  # noqa: BLE001 - the guard's rule
            guard.fault("autotune pin", error)
            return choices

    register(winner_alone)


def chosen(choices: list[Any], pins: Pins) -> list[Any]:
    """The pinned choice alone, or all."""
    if len(choices) < 2 or not pins:
        return choices
    nodes = choices[0].input_nodes
    fitting = pins.fitting(GEMM, inputs_of(nodes), device_of(nodes[0].get_device()), torch_version())
    for winner in fitting:
        same = [choice for choice in choices if (choice_name(choice), choice_config(choice)) == (winner.winner, winner.config)]
        if len(same) == 1:
            pins.taken(winner)
            return same
        if len(fitting) == 1:
            pins.ignored(winner, "several choices bear its name" if same else "it is not among the choices offered")
    return choices

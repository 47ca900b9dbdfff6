"""One palette for all pages: a colour, a glyph and a word per group of leaves, and a shade per leaf. Data, and look-ups.

The hues are those of Okabe and Ito (2008), which colour-blind readers can tell apart; the lightness differs as well, so that
a grey print can still be read, and each group has a glyph for terminals without colour. Idle time is blue and purple, failure
is warm, effective time is the one green.

Source: M. Okabe, K. Ito, Color Universal Design, https://jfly.uni-koeln.de/color/
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ettrain.lifecycle import EFFECTIVE, UNTRACKED


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One group of leaves as it is drawn."""

    key: str
    title: str
    fill: str
    """Colour on a page, #rrggbb."""
    ansi: int
    """Colour in a terminal, of the 256."""
    glyph: str
    ascii: str
    """The glyph where the terminal cannot show it."""
    trace: str
    """Reserved colour name of the Chrome trace viewer."""
    meaning: str


GROUPS: Final[tuple[Group, ...]] = (
    Group(
        key="effective",
        title="effective",
        fill="#009e73",
        ansi=36,
        glyph="█",
        ascii="#",
        trace="good",
        meaning="trained on data whose result survives",
    ),
    Group(
        key="start",
        title="start",
        fill="#56b4e9",
        ansi=74,
        glyph="░",
        ascii=".",
        trace="thread_state_runnable",
        meaning="from the hardware to the first trained batch",
    ),
    Group(
        key="steady",
        title="steady",
        fill="#cc79a7",
        ansi=175,
        glyph="▒",
        ascii="+",
        trace="rail_animation",
        meaning="idle between steps: data, recompilation, saves, evaluation, stalls",
    ),
    Group(
        key="shutdown",
        title="shutdown",
        fill="#5560b8",
        ansi=61,
        glyph="▁",
        ascii="_",
        trace="thread_state_iowait",
        meaning="from the last step to the release",
    ),
    Group(
        key="unsaved",
        title="unsaved",
        fill="#d55e00",
        ansi=166,
        glyph="╳",
        ascii="x",
        trace="terrible",
        meaning="trained, then rolled back",
    ),
    Group(
        key="detect",
        title="detect",
        fill="#e69f00",
        ansi=214,
        glyph="!",
        ascii="!",
        trace="bad",
        meaning="stopped, not yet noticed",
    ),
    Group(
        key="reschedule",
        title="reschedule",
        fill="#f0e442",
        ansi=142,
        glyph="┄",
        ascii="-",
        trace="yellow",
        meaning="noticed, waiting for new processes",
    ),
    Group(
        key="restart",
        title="restart",
        fill="#94501c",
        ansi=130,
        glyph="▚",
        ascii="%",
        trace="olive",
        meaning="the start stages again, after an interruption",
    ),
    Group(
        key="untracked",
        title="untracked",
        fill="#5d636e",
        ansi=241,
        glyph="?",
        ascii="?",
        trace="grey",
        meaning="alive, and nothing recorded covers it",
    ),
)
"""In the order of legends."""

BY_KEY: Final = {group.key: group for group in GROUPS}

ASCII: Final = str.maketrans(
    {group.glyph: group.ascii for group in GROUPS}
    | {"·": "-", "…": "~", "±": "~", "−": "-", "→": ">", "│": "|", "└": "`", "─": "-", "µ": "u"}
)
"""For `str.translate`: what a terminal without Unicode shows instead."""

_START_SHADES: Final[dict[str, int]] = {
    "launch": 0,
    "imports": 5,
    "setup": 2,
    "device_init": 8,
    "process_group_init": 4,
    "preproc_creation": 9,
    "train_module_creation": 3,
    "init_plugins": 7,
    "pre_train": 1,
    "checkpoint_load": 6,
    "get_first_batch_data": 2,
    "compile": 10,
}
"""Stage -> place on its group's ramp (0 light, 10 dark); neighbours in time lie far apart."""

_RAMPS: Final[dict[str, tuple[str, str]]] = {"start": ("#a9daf6", "#1769a8"), "restart": ("#dca878", "#8a4512")}

_SHADES: Final[dict[str, str]] = {
    "idle/steady/data_wait": "#cc79a7",
    "idle/steady/recompile": "#a0457c",
    "idle/steady/checkpoint_blocking": "#e2a9c9",
    "idle/steady/evaluation": "#9a6fc0",
    "idle/steady/stall": "#83396c",
    "idle/shutdown/final_checkpoint": "#7c89d6",
    "idle/shutdown/publish": "#a3ace4",
    "idle/shutdown/teardown": "#5560b8",
}


def group_of(path: str) -> Group:
    """Group of a leaf's path, e.g. 'failure/restart/compile' -> restart."""
    if path in (EFFECTIVE, UNTRACKED):
        return BY_KEY[path]
    words = path.split("/")
    found = BY_KEY.get(words[1]) if len(words) > 1 else None
    return found if found is not None else BY_KEY[UNTRACKED]


def fill_of(path: str) -> str:
    """Colour of a leaf: a shade of its group's."""
    if path in _SHADES:
        return _SHADES[path]
    group = group_of(path)
    ramp = _RAMPS.get(group.key)
    if ramp is None:
        return group.fill
    return _mix(*ramp, _START_SHADES.get(path.rsplit("/", 1)[-1], 4))


def _mix(light: str, dark: str, tenths: int) -> str:
    pairs = ((int(light[at : at + 2], 16), int(dark[at : at + 2], 16)) for at in (1, 3, 5))
    return "#" + "".join(f"{(a * (10 - tenths) + b * tenths) // 10:02x}" for a, b in pairs)

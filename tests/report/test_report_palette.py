"""The palette: groups that colour-blind readers, grey prints and colourless terminals can tell apart."""

import itertools

import pytest

from ettrain import lifecycle
from ettrain.report.palette import GROUPS, fill_of, group_of

# Linear RGB as a protanope and a deuteranope see it. Source: Machado, Oliveira, Fernandes 2009, severity 1.0.
SIGHT = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
}


def linear(fill):
    values = [int(fill[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]


def lab(rgb):
    x, y, z = (
        sum(a * b for a, b in zip(row, rgb)) for row in ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    )
    f = [t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x / 0.9505, y, z / 1.089)]
    return 116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])


def luminance(fill):
    return sum(a * b for a, b in zip((0.2126, 0.7152, 0.0722), linear(fill)))


@pytest.mark.parametrize("sight", SIGHT)
def test_groups_differ_for_every_sight(sight):
    for one, other in itertools.combinations(GROUPS, 2):
        seen = []
        for group in (one, other):
            rgb = [max(0.0, min(1.0, sum(a * b for a, b in zip(row, linear(group.fill))))) for row in SIGHT[sight]]
            seen.append(lab(rgb))
        distance = sum((a - b) ** 2 for a, b in zip(*seen)) ** 0.5
        assert distance > 15, f"{one.key} and {other.key} look alike ({sight}): {distance:.1f}"


def test_effective_stands_out_from_every_loss():
    effective = lab(linear(GROUPS[0].fill))
    for group in GROUPS[1:]:
        assert sum((a - b) ** 2 for a, b in zip(effective, lab(linear(group.fill)))) ** 0.5 > 30


def test_glyphs_and_keys_are_distinct():
    for field in ("key", "glyph", "ascii", "fill", "ansi", "trace"):
        assert len({getattr(group, field) for group in GROUPS}) == len(GROUPS)


@pytest.mark.parametrize("ground", ["#ffffff", "#171b20"])
def test_fills_can_be_seen_on_both_grounds(ground):
    for group in GROUPS:
        light, dark = sorted((luminance(group.fill), luminance(ground)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) > 1.25, f"{group.key} on {ground}"


def test_every_leaf_of_the_lifecycle_has_a_group_and_a_fill():
    for leaf in lifecycle.ORDER:
        for restart in (False, True):
            path = lifecycle.leaf_path(leaf, restart=restart)
            assert fill_of(path).startswith("#")
            assert len(fill_of(path)) == 7
            expected = "restart" if restart and leaf.startswith("start/") else leaf.split("/")[0]
            assert group_of(path).key == expected
    for path in (lifecycle.UNSAVED, lifecycle.DETECT, lifecycle.RESCHEDULE):
        assert group_of(path).key == path.split("/")[1]


def test_neighbours_in_the_start_have_different_shades():
    stages = [leaf for leaf in lifecycle.ORDER if leaf.startswith("start/") and not leaf.endswith("*")]
    for one, other in itertools.pairwise(stages):
        assert fill_of(f"idle/{one}") != fill_of(f"idle/{other}")


def test_a_users_own_stage_and_an_unknown_path_have_a_colour():
    assert group_of("idle/start/my_stage").key == "start"
    assert group_of("failure/restart/my_stage").key == "restart"
    assert group_of("nonsense").key == "untracked"

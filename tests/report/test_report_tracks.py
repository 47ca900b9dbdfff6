"""Tracks: exact until they are thinned, and then only for the eyes."""

import pytest

from ettrain.account.history import Label, Span
from ettrain.report.tracks import Piece, job_pieces, nested_lanes, thin, training_ns, wall_pieces, whole_rank

LABEL = Label("stage", user=False, part="")


def test_all_ranks_pieces_are_the_device_view_exactly(any_story):
    account, _ = any_story
    devices = {tiles.rank: tiles.devices for ranks in account.tiles for tiles in ranks}
    sums = {}
    for rank, count in devices.items():
        for piece in whole_rank(account, rank):
            assert piece.end > piece.start
            sums[piece.path] = sums.get(piece.path, 0) + (piece.end - piece.start) * count
    assert sums.pop("effective", 0) == account.ledger.effective_device_ns
    assert sums == {leaf.path: leaf.device_ns for leaf in account.ledger.leaves if leaf.device_ns}


def test_the_jobs_pieces_are_the_wall_view_exactly(any_story):
    account, _ = any_story
    sums = {}
    for piece in job_pieces(account):
        sums[piece.path] = sums.get(piece.path, 0) + piece.end - piece.start
    assert sums.pop("effective", 0) == account.ledger.effective_ns
    assert sums == {leaf.path: leaf.wall_ns for leaf in account.ledger.leaves if leaf.wall_ns}


def test_wall_pieces_carry_the_parts_of_the_leaves(story):
    account, _ = story("two_failures")
    parts = {}
    for number in range(len(account.frames)):
        for piece in wall_pieces(account, number):
            if piece.path == "idle/start/compile":
                parts[piece.part] = parts.get(piece.part, 0) + piece.end - piece.start
    leaf = next(leaf for leaf in account.ledger.leaves if leaf.path == "idle/start/compile")
    assert parts == leaf.parts


def test_thinning_keeps_the_time_and_roughly_the_shares():
    pieces = [
        Piece(10 * i, 10 * i + 8, "effective", "") if k else Piece(10 * i + 8, 10 * i + 10, "idle/steady/data_wait", "")
        for i in range(1000)
        for k in (1, 0)
    ]
    track = thin(pieces, 100)
    assert track.merged == 2000
    assert len(track.pieces) == 100
    assert (track.pieces[0].start, track.pieces[-1].end) == (0, 10_000)
    assert all(a.end == b.start for a, b in zip(track.pieces, track.pieces[1:]))
    waits = sum(piece.end - piece.start for piece in track.pieces if piece.path.endswith("data_wait"))
    assert waits == pytest.approx(2000, abs=100)
    assert track.pieces[0].part == "20 merged"


def test_thinning_leaves_long_pieces_and_gaps_alone():
    pieces = [Piece(0, 500, "a", ""), Piece(500, 501, "b", ""), Piece(700, 701, "c", ""), Piece(701, 1300, "d", "x")]
    track = thin(pieces, 100)
    assert track.pieces == pieces
    assert track.merged == 0


def test_thinning_by_nothing_changes_nothing(any_story):
    account, _ = any_story
    pieces = job_pieces(account)
    assert thin(pieces, 0).pieces == pieces


def test_spans_in_a_lane_nest_or_do_not_touch():
    spans = [Span(0, 10, LABEL), Span(2, 5, LABEL), Span(4, 8, LABEL), Span(5, 6, LABEL), Span(10, 12, LABEL), Span(11, 14, LABEL)]
    lanes = nested_lanes(spans)
    assert sorted(span for lane in lanes for span in lane) == sorted(spans)
    assert len(lanes) == 2
    for lane in lanes:
        for one in lane:
            for other in lane:
                apart = one.end <= other.start or other.end <= one.start
                inside = (one.start <= other.start and other.end <= one.end) or (other.start <= one.start and one.end <= other.end)
                assert apart or inside


def test_training_time_counts_what_was_lost_too(story):
    account, _ = story("fresh")
    trained = training_ns(account)
    unsaved = next(leaf.device_ns for leaf in account.ledger.leaves if leaf.path == "failure/unsaved")
    assert sum(trained.values()) == account.ledger.effective_device_ns + unsaved

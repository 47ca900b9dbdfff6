"""The arithmetic of blocks, over all small cases."""

import itertools

import pytest

from ettrain.boost.feed.blocks import DROP, EVEN, KEEP, cut

CASES = list(itertools.product(range(40), range(1, 7), range(1, 6)))


def blocks(size, world, batch, tail=KEEP, growing=True):
    sizes, left = [], size
    while block := cut(left, world=world, batch=batch, tail=tail, growing=growing):
        sizes.append(block)
        left -= block
    return sizes, left


def per_rank(block, world):
    return [len(range(rank, block, world)) for rank in range(world)]


def test_every_rank_has_a_batch_of_every_block():
    for (size, world, batch), tail in itertools.product(CASES, (KEEP, EVEN, DROP)):
        for block in blocks(size, world, batch, tail)[0]:
            assert min(per_rank(block, world)) >= 1, (size, world, batch, tail)


def test_nothing_is_left_over_as_long_as_there_are_as_many_samples_as_ranks():
    for size, world, batch in CASES:
        left = blocks(size, world, batch)[1]
        assert left == 0 if size >= world else left == size


def test_a_batch_is_never_too_large_but_by_one_where_it_is_of_one():
    for size, world, batch in CASES:
        for block in blocks(size, world, batch)[0]:
            assert max(per_rank(block, world)) <= (2 if batch == 1 else batch)


def test_there_are_as_many_steps_as_one_loader_of_all_samples_would_make():
    for size, world, batch in CASES:
        if size >= world and batch > 1:
            assert len(blocks(size, world, batch)[0]) == -(-size // (world * batch))


def test_only_the_last_two_blocks_are_ever_smaller():
    for size, world, batch in CASES:
        assert all(block == world * batch for block in blocks(size, world, batch)[0][:-2])


def test_where_all_ranks_get_equally_much_the_blocks_are_those_of_torchs_sampler():
    for size, world, batch in CASES:
        if size % world == 0:
            mine = size // world
            theirs = [min(batch, mine - at) for at in range(0, mine, batch)]
            assert [block // world for block in blocks(size, world, batch)[0]] == theirs


def test_drop_last_leaves_out_less_than_it_says():
    for size, world, batch in CASES:
        assert blocks(size, world, batch, DROP)[1] == size % (world * batch)
        assert blocks(size, world, batch, EVEN)[1] == size % world


def test_from_any_block_the_cut_goes_on_as_if_it_had_not_been_interrupted():
    for size, world, batch in CASES:
        sizes, _ = blocks(size, world, batch)
        for number in range(len(sizes)):
            assert blocks(size - sum(sizes[:number]), world, batch)[0] == sizes[number:]


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_single_samples_are_never_two(world):
    for size in range(40):
        assert set(blocks(size, world, 1, growing=False)[0]) <= {world}

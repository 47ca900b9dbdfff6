"""How what is left of an order is cut into blocks, one batch per rank each: arithmetic only.

Rank `r` of `world` trains `block[r::world]`, which is what torch's DistributedSampler and DataLoader give it wherever that sampler adds no
padding. Every rank has a batch of every block, or a rank would wait for the others for ever.
"""

from __future__ import annotations

from typing import Final, Literal

Tail = Literal["keep", "even", "drop"]
"""What becomes of an incomplete block: trained; trained as far as all ranks get equally much (`DistributedSampler(drop_last=True)`);
dropped (`DataLoader(drop_last=True)`)."""

KEEP: Final[Tail] = "keep"
EVEN: Final[Tail] = "even"
DROP: Final[Tail] = "drop"


def cut(left: int, *, world: int, batch: int, tail: Tail = KEEP, growing: bool = True) -> int:
    """Size of the next block.

    Args:
        left: samples that are left.
        world: ranks.
        batch: samples per rank and batch.
        tail: what becomes of an incomplete block.
        growing: whether a batch may have one sample more than `batch`, where that alone gives each rank one (`batch` 1).
    Returns:
        Number of samples; 0: no further block. What is left then is fewer than `world` with `tail` keep.
    """
    full = world * batch
    if tail == DROP:
        return full if left >= full else 0
    if tail == EVEN:
        return min(full, left - left % world)
    if left <= full:
        return left if left >= world else 0
    rest = left - full
    if rest >= world:
        return full
    if batch > 1:  # the last block would leave ranks without: it gets one sample for each, from this one
        return left - world
    return left if growing else full

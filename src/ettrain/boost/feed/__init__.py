"""Exactly once: where a loader stands, kept with the checkpoint, so that after any kill each sample is trained once.

`follow` looks at a loader and refuses what cannot be kept. A `Feed` hands out its batches and knows the position of the last one: a `twinfeed`
through a twin of the loader, a `statefeed` by a loader's own state. Below: `loaders` (what a loader consists of, and its twin), `plans` (the indices of
each batch), `orders` (the order of an epoch, drawn and drawn again), `blocks` (how it is cut for the ranks), `streams` and `pieces` (iterable
datasets), `workers` (what a worker adds to a batch and is started with), `ranks` (the positions of all ranks side by side).
"""

from ettrain.boost.feed.feed import Feed
from ettrain.boost.feed.follow import follow

__all__ = ["Feed", "follow"]

"""Exactly once: where a loader stands, kept with the checkpoint, so that after any kill each sample is trained once.

`follow` looks at a loader and refuses what cannot be kept. A `Feed` hands out its batches and knows the position of the last one. Below it:
`loaders` (what a loader consists of, and a twin of it that asks us for its indices), `blocks` (how an order is cut for the ranks), `orders`
(the order of one epoch, drawn and drawn again), `plans` (the indices of each batch), `workers` (what a worker process adds to a batch and is
started with), `turns` (whose turn it is among the workers of an iterable dataset).
"""

from ettrain.boost.feed.feed import Feed
from ettrain.boost.feed.follow import follow

__all__ = ["Feed", "follow"]

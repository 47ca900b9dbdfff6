"""A store that counts what is asked of it, and a counter of collectives as they reach torch's functions."""

import collections

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d


class CountingStore(dist.Store):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.n = collections.Counter()

    def taken(self):
        """Counts since the last time."""
        counts = dict(self.n)
        self.n.clear()
        return counts

    def set(self, key, value):
        self.n["set"] += 1
        return self.inner.set(key, value)

    def get(self, key):
        self.n["get"] += 1
        return self.inner.get(key)

    def wait(self, *words):
        self.n["wait"] += 1
        return self.inner.wait(*words)

    def add(self, key, value):
        self.n["add"] += 1
        return self.inner.add(key, value)

    def check(self, keys):
        self.n["check"] += 1
        return self.inner.check(keys)

    def delete_key(self, key):
        return self.inner.delete_key(key)

    def compare_set(self, *words):
        self.n["compare_set"] += 1
        return self.inner.compare_set(*words)

    def multi_get(self, keys):
        self.n["get"] += len(keys)
        return self.inner.multi_get(keys)

    def multi_set(self, keys, values):
        self.n["set"] += len(keys)
        return self.inner.multi_set(keys, values)

    def append(self, key, value):
        self.n["append"] += 1
        return self.inner.append(key, value)

    def has_extended_api(self):
        return self.inner.has_extended_api()

    def set_timeout(self, timeout):
        return self.inner.set_timeout(timeout)


CALLS = collections.Counter()


def count_calls(*names):
    """Count calls of these functions of torch.distributed, from wherever they are reached as attributes of it."""
    for name in names:
        run = getattr(c10d, name)

        def counted(*args, run=run, name=name, **kwargs):
            CALLS[name] += 1
            return run(*args, **kwargs)

        setattr(dist, name, counted)
        setattr(c10d, name, counted)

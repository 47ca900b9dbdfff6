"""Compiles a function again for one cause after another, of which no dynamic source cures any but the first."""

import torch


def shapes(x, flag=True, more=None, items=()):
    y = x.sin() if flag else x.cos()
    y = y if more is None else y + more
    return y + sum(item.sum() for item in items)


def strided(x):
    return x + 2


def mode(x):
    return x + 1


def small(x):
    return x * 2


def often(x, word):
    return x * len(word)


def other(x):  # knows `x` as well: there it stays
    return x.relu()


torch._dynamo.config.recompile_limit = 8
shape, stride, moded, smalls = (torch.compile(function, backend="eager") for function in (shapes, strided, mode, small))
base = torch.ones(5, 4)
shape(base)
shape(torch.ones(6, 4))
shape(torch.ones(6, 4), flag=False)
shape(torch.ones(6, 4), more=torch.ones(1))
shape(torch.ones(6, 4), items=[torch.ones(2)])
shape(torch.ones(6, 4).double())
stride(torch.ones(12))
stride(torch.ones(24)[::2])
moded(base)
with torch.no_grad():
    moded(base)
smalls(torch.ones(7))
smalls(torch.ones(1))
torch.compile(other, backend="eager")(torch.ones(5, 4))
torch._dynamo.config.recompile_limit = 2
limited = torch.compile(often, backend="eager")
for word in ("a", "bb", "ccc", "dddd"):
    limited(base, word)

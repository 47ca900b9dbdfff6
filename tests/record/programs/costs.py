"""Nanoseconds of the hot path: the fastest of many short rounds, less what an empty call costs."""
# ruff: noqa: E402

import json
import sys
import time
from types import SimpleNamespace

import ettrain as ett


def fastest(function, calls=200, rounds=400):
    best = float("inf")
    for _ in range(rounds):
        begin = time.perf_counter_ns()
        for _ in range(calls):
            function()
        best = min(best, (time.perf_counter_ns() - begin) / calls)
    return best


def stage():
    with ett.stage("evaluation"):
        pass


empty = fastest(lambda: None)
costs = {"ett.step": fastest(ett.step) - empty, "a stage": fastest(stage, 20) - empty}
if sys.argv[1:] == ["explicit"]:
    print(json.dumps(costs))
    sys.exit(0)

from ettrain.record.hooks import data, training
from ettrain.record.recorder import recorder

recorder.in_child()


class Optimizer:
    pass


class Iterator:
    def __next__(self):
        return 1


class Loader:
    def __iter__(self):
        return Iterator()


def nothing(*args, **kwargs):
    return None


autograd = SimpleNamespace(backward=nothing, grad=nothing)
hooks = []
bare = Iterator()
optimizer = Optimizer()


def without():
    next(bare)
    nothing(None)


unhooked = fastest(without)
training.on_autograd(autograd)
training.on_optimizer(SimpleNamespace(register_optimizer_step_post_hook=hooks.append))
data._hook_next(Iterator)
data._hook_iter(Loader)
batches = iter(Loader())
(stepped,) = hooks


def hooked():
    next(batches)
    autograd.backward(None)
    stepped(optimizer, (), {})


costs["all hooks of a step"] = fastest(hooked) - unhooked
costs["steps"] = recorder.steps
print(json.dumps(costs))

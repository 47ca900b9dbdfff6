"""What a kept plan is kept under: the same for what is equal, another for what is not, none for what cannot be compared."""

import functools
import os
import pickle
import subprocess
import sys
import threading
from collections import Counter, OrderedDict
from dataclasses import dataclass
from enum import Enum

import pytest
import torch

from ettrain.boost.comms.plans import UndescribedError, describe, plan_cache, plan_key


@dataclass
class Config:
    rows: int
    kind: str = "row_wise"


class Kind(Enum):
    FAST = 1


class Slotted:
    __slots__ = ("size",)

    def __init__(self, size):
        self.size = size

    def method(self):
        return self.size


class Planner:
    def __init__(self, batch_size=512, extra=None):
        self._batch_size = batch_size
        self._extra = extra
        self._stats = threading.Lock()
        self.made = 0

    def plan(self, module, sharders):
        return {"plan": self._batch_size}


class Sharder:
    module_type = torch.nn.EmbeddingBag


def adder(number):
    return lambda value: value + number


PAIRS = [
    (Config(5), Config(6)),
    (Slotted(5), Slotted(6)),
    (Slotted(5).method, Slotted(6).method),
    (functools.partial(max, 1), functools.partial(max, 2)),
    (functools.partial(max, 1), functools.partial(min, 1)),
    (adder(1), adder(2)),
    (lambda: 1, lambda: 2),
    ({"a": 1, "b": [Kind.FAST]}, {"a": 1, "b": [1]}),
    ({1, 2}, {1, 3}),
    (OrderedDict(a=1), {"a": 1.0}),
    (torch.float32, torch.float16),
    (torch.ones(2), torch.zeros(2)),
    (torch.ones(100), torch.ones(100).index_fill(0, torch.tensor([99]), 2)),
    (torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)),
    (1, True),
    ("1", 1),
]


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=range(len(PAIRS)))
def test_what_differs_is_told_apart(one, other):
    assert describe(one) != describe(other)


def test_equal_things_have_equal_words_whatever_their_order_or_identity():
    assert describe(Config(5)) == describe(Config(5))
    assert describe({"a": 1, "b": 2}) == describe({"b": 2, "a": 1})
    assert describe(adder(1)) == describe(adder(1))
    circle = [1]
    circle.append(circle)
    assert describe(circle) == describe(circle)


def test_the_words_are_the_same_in_another_process():
    code = "from ettrain.boost.comms.plans import describe; from collections import Counter; print(describe([{'x', 'y', 'z'}, Counter(a=1), max, dict]))"
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    env = {"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)}
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env).stdout
    assert told.strip() == describe([{"x", "y", "z"}, Counter(a=1), max, dict])


@pytest.mark.parametrize("value", [threading.Lock(), sys.stderr.buffer, (number for number in "a")], ids=lambda value: type(value).__name__)
def test_what_cannot_be_compared_is_refused(value):
    with pytest.raises(UndescribedError, match="has no parts to compare"):
        describe(value)


def model(rows=8):
    return torch.nn.ModuleDict({"table": torch.nn.EmbeddingBag(rows, 4)})


def test_the_key_follows_from_planner_and_tables():
    key = plan_key(Planner(), model(), [Sharder()])
    assert key == plan_key(Planner(), model(), [Sharder()])
    assert len({key, plan_key(Planner(256), model(), [Sharder()]), plan_key(Planner(), model(9), [Sharder()]), plan_key(Planner(), model(), [])}) == 4


def test_a_plan_is_read_where_it_was_kept(tmp_path):
    first, second = plan_cache(Planner(), tmp_path / "new"), plan_cache(Planner(), tmp_path / "new")
    assert first.plan(model(), [Sharder()]) == second.plan(model(), [Sharder()]) == {"plan": 512}
    assert (first.hit, second.hit) == (False, True)
    assert second.made == 0


def test_a_plan_that_cannot_be_read_is_made_again(tmp_path):
    plan_cache(Planner(), tmp_path).plan(model(), [Sharder()])
    (path,) = tmp_path.iterdir()
    path.write_bytes(pickle.dumps({"plan": 512})[:-3])
    again = plan_cache(Planner(), tmp_path)
    with pytest.warns(RuntimeWarning, match="the plan is computed again"):
        assert again.plan(model(), [Sharder()]) == {"plan": 512}
    assert again.hit is False
    assert pickle.loads(path.read_bytes()) == {"plan": 512}


def test_what_cannot_be_described_is_not_kept_and_said(tmp_path):
    with pytest.warns(RuntimeWarning, match=r"is not kept: a _thread\.lock has no parts to compare"):
        assert plan_cache(Planner(extra=threading.Lock()), tmp_path).plan(model(), [Sharder()]) == {"plan": 512}
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_costs_only_the_keeping(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(RuntimeWarning, match="is not kept"):
        assert plan_cache(Planner(), tmp_path / "file").plan(model(), [Sharder()]) == {"plan": 512}

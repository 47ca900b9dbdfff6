"""Pins by rule: which choice is taken, which winner ignored and why; the file; and `@triton.autotune` without a GPU.

Where triton is not installed, its autotuner is a stand-in with the same public interface; launches and timings are made up in any case.
"""

import importlib
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ettrain.boost.autotune import gemm, kernels, pins
from ettrain.errors import UsageError
from ettrain.record.hooks import tuning
from ettrain.tuned import GEMM, TRITON, Tuned, from_toml, to_toml, tuned_from

TEXT = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=20)
WINNERS = st.builds(
    Tuned, kind=st.sampled_from([GEMM, TRITON]), op=TEXT, inputs=st.lists(TEXT, max_size=3).map(tuple), device=TEXT, version=TEXT, winner=TEXT,
    config=st.one_of(st.just(""), TEXT), best_ms=st.one_of(st.none(), st.floats(1e-6, 1e6)), choices=st.integers(0, 99), search_s=st.floats(0, 1e6),
)


@given(st.lists(WINNERS, max_size=4))
@settings(deadline=None)
def test_a_file_says_what_was_written(winners):
    assert sorted(from_toml(to_toml(winners)), key=str) == sorted(winners, key=str)


@pytest.mark.parametrize(("text", "wrong"), [("[", "no TOML"), ("format = 2", "format is 2"), ("format = 1\n[[triton]]\nop='k'", "number 1 lacks"), ("format = 1\ngemm = 3", "number 1 lacks")])
def test_a_file_that_is_none_says_what_is_wrong(text, wrong):
    with pytest.raises(UsageError, match=wrong.replace("[", r"\[")):
        from_toml(text)


@pytest.fixture
def told(monkeypatch):
    """Records that would go to the journal."""
    records = []
    writer = SimpleNamespace(emit=records.append, note=records.append)
    monkeypatch.setattr(tuning, "recorder", writer)
    monkeypatch.setattr(pins, "recorder", writer)
    return records


# ---- Inductor's choices


class Node:
    def get_size(self):
        return (4, "s0")

    def get_stride(self):
        return (1, 4)

    def get_dtype(self):
        return torch.float32

    def get_device(self):
        return torch.device("cpu")


class Choice(SimpleNamespace):
    __hash__ = object.__hash__


def choice(name, description=""):
    return Choice(name=name, description=description, input_nodes=[Node()])


def gemm_winner(winner, config="", **more):
    place = {"op": "mm", "inputs": ("float32[4,?](1,4)",), "device": tuning.device_of("cpu"), "version": tuning.torch_version()}
    return Tuned(kind=GEMM, winner=winner, config=config, **(place | more))


OFFERED = [choice("mm"), choice("triton_mm_7", "BLOCK_M=64"), choice("triton_mm_8", "BLOCK_M=32")]


def taken(*winners):
    held = pins.Pins()
    held.add(winners)
    return gemm.chosen(OFFERED, held)


def test_the_winner_is_left_alone_among_the_choices_whatever_number_it_bears(told):
    assert taken(gemm_winner("triton_mm", "BLOCK_M=32")) == [OFFERED[2]]
    assert taken(gemm_winner("mm")) == [OFFERED[0]]
    assert [record["state"] for record in told] == ["pinned", "pinned"]


@pytest.mark.parametrize(
    ("winner", "reason"),
    [
        (gemm_winner("triton_mm", "BLOCK_M=128"), "not among the choices"),
        (gemm_winner("mm", device="cuda H200"), "measured on cuda H200"),
        (gemm_winner("mm", version="torch 1.0"), "under torch 1.0"),
    ],
)
def test_a_winner_that_does_not_fit_leaves_all_choices_and_is_told_once(told, winner, reason):
    held = pins.Pins()
    held.add([winner])
    for _ in range(2):
        assert gemm.chosen(OFFERED, held) == OFFERED
    (record,) = told
    assert record["state"] == "ignored"
    assert reason in record["reason"]


def test_other_inputs_are_searched_for_and_nothing_is_said(told):
    assert taken(gemm_winner("mm", inputs=("float32[4,5](1,4)",))) == OFFERED
    assert told == []


def test_two_winners_for_the_same_inputs_are_told_apart_by_what_is_offered(told):
    assert taken(gemm_winner("int_mm", op="int_mm"), gemm_winner("mm")) == [OFFERED[0]]
    assert [record["state"] for record in told] == ["pinned"]


def test_a_fault_of_the_pins_leaves_the_choices_as_they_are(monkeypatch, capsys):
    registered = []
    held = pins.Pins()
    held.add([gemm_winner("mm")])
    gemm.attach(SimpleNamespace(add_preprocessing_fn=registered.append), held)
    broken = [SimpleNamespace(name="a"), SimpleNamespace(name="b")]
    assert registered[0](broken) is broken


def test_pin_registers_with_the_torch_at_hand_once(tmp_path):
    from torch._inductor import select_algorithm

    path = tmp_path / "tuned.toml"
    path.write_text(to_toml([gemm_winner("mm")]))
    before = len(select_algorithm.get_algorithm_selector_cache().preprocessing_fns)
    assert pins.pin(path) == pins.pin(path) == 1
    assert len(select_algorithm.get_algorithm_selector_cache().preprocessing_fns) == before + 1
    with pytest.raises(UsageError, match="cannot be read"):
        pins.pin(tmp_path / "absent.toml")


def test_a_torch_without_these_interfaces_is_noted_and_left_alone(told, monkeypatch):
    monkeypatch.setattr(gemm, "recorder", SimpleNamespace(note=told.append))
    bare = SimpleNamespace()
    tuning.on_select_algorithm(bare)
    gemm.attach(bare, pins.Pins())
    tuning.on_select_algorithm(SimpleNamespace(add_feedback_saver=lambda call: None))
    assert told == [
        "not measured: this torch has no torch._inductor.select_algorithm.add_feedback_saver",
        "not pinned: this torch has no torch._inductor.select_algorithm.add_preprocessing_fn",
        "not measured: this torch has no AlgorithmSelectorCache.do_autotuning, so not how long a search takes",
    ]


def test_timings_of_choices_that_failed_are_no_winners(told):
    tuning.selections.chosen({OFFERED[0]: float("inf"), OFFERED[1]: 2.0, OFFERED[2]: 3.0}, "mm", [Node(), Node()], OFFERED)
    tuning.selections.chosen({OFFERED[0]: float("inf")}, "mm", [Node()], OFFERED)
    (record,) = told
    assert (record["winner"], record["config"], record["best_ms"], record["runner_up_ms"]) == ("triton_mm", "BLOCK_M=64", 2.0, 3.0)


# ---- @triton.autotune


class Config:
    def __init__(self, block):
        self.kwargs = {"B": block}

    def all_kwargs(self):
        return {**self.kwargs, "num_warps": 4}


class StandIn:
    """What `triton.runtime.autotuner.Autotuner` is to its users."""

    def __init__(self, fn, configs):
        self.fn, self.configs, self.keys, self.arg_names = fn, configs, ["N"], ["x", "N", "B"]
        self.cache, self.measured = {}, []

    def run(self, *args, **kwargs):
        named = dict(zip(self.arg_names, args))
        key = (named["N"], *(str(value.dtype) for value in named.values() if hasattr(value, "dtype")))
        if key not in self.cache:
            self.configs_timings = {config: self._bench(config=config) for config in self.configs}
            self.bench_time = 1.0 + len(self.cache)
            self.cache[key] = min(self.configs_timings, key=self.configs_timings.get)
        return self.cache[key].kwargs["B"]

    def _bench(self, *args, config, **more):
        self.measured.append(config)
        return [abs(config.kwargs["B"] - 128) / 10 + 1] * 3


def stand_in():
    module = ModuleType("triton.runtime.autotuner")
    module.Autotuner = type("Autotuner", (StandIn,), {})
    return module, lambda: module.Autotuner(SimpleNamespace(src="def k(): pass", __name__="k"), [Config(block) for block in (64, 128, 256)])


def real():
    module = pytest.importorskip("triton.runtime.autotuner")
    triton = sys.modules["triton"]

    class Kernel:
        src, __name__, arg_names, fn = "def k(): pass", "k", ["x", "N", "B"], staticmethod(real)

        def run(self, *args, **kwargs):
            return kwargs["B"]

    def make():
        tuner = triton.autotune(configs=[triton.Config({"B": block}) for block in (64, 128, 256)], key=["N"])(Kernel())
        tuner.measured = []
        return tuner

    return module, make


@pytest.fixture(params=[stand_in, real])
def autotuner(request, monkeypatch):
    """(module, makes a kernel of three configurations)."""
    module, make = request.param()
    monkeypatch.setattr(module.Autotuner, "run", module.Autotuner.run)
    monkeypatch.setattr(module.Autotuner, "_bench", StandIn._bench)
    return module, make


def test_a_kernels_search_is_recorded_once_per_key_and_pinned_in_the_next_process(told, autotuner):
    module, make = autotuner
    tuning.on_triton_autotuner(module)
    first = make()
    assert [first.run(torch.ones(1), size) for size in (1000, 1000, 2000)] == [128, 128, 128]
    assert len(first.measured) == 6
    assert [(record["inputs"], record["state"]) for record in told] == [(["1000", "torch.float32"], "searched"), (["2000", "torch.float32"], "searched")]
    held = pins.Pins()
    held.add(from_toml(to_toml([tuned_from(record, kind=record["kind"]) for record in told[:1]])))
    told.clear()
    kernels.attach(module, held)
    second = make()
    assert second.run(torch.ones(1), 1000) == 128
    assert second.measured == []
    assert [record["state"] for record in told] == ["pinned"]
    assert second.run(torch.ones(1), 3000) == 128
    assert len(second.measured) == 3
    assert [record["state"] for record in told] == ["pinned", "searched"]


def test_a_kernel_whose_body_or_configurations_changed_is_searched_for(told, autotuner):
    module, make = autotuner
    tuner = make()
    place = {"kind": TRITON, "inputs": ("1000", "torch.float32"), "device": tuning.accelerator(), "version": tuning.triton_version()}
    held = pins.Pins()
    held.add([Tuned(op="k:000000000000", winner="B=64, num_warps=4", **place), Tuned(op=tuning.kernel_name(tuner), winner="B=999", **place)])
    kernels.attach(module, held)
    tuner.run(torch.ones(1), 1000)
    assert len(tuner.measured) == 3
    assert [(record["state"], record["reason"]) for record in told] == [("ignored", "it is not among the configurations offered")]


@pytest.mark.gpu
def test_a_real_kernel_on_a_gpu_is_searched_for_once_and_pinned_then(told, monkeypatch):
    pytest.importorskip("triton")
    if not torch.cuda.is_available():
        pytest.skip("no accelerator")
    module = importlib.import_module("triton.runtime.autotuner")
    monkeypatch.setattr(module.Autotuner, "run", module.Autotuner.run)
    tuning.on_triton_autotuner(module)
    from gpukernel import make

    first, x = make(), torch.empty(4096, device="cuda")
    first[(64,)](x, 4096)
    (record,) = told
    held = pins.Pins()
    held.add([tuned_from(record, kind=TRITON)])
    kernels.attach(module, held)
    second = make()
    second[(64,)](x, 4096)
    assert [one["state"] for one in told] == ["searched", "pinned"]

"""`ett.warm_compile` changes nothing: every value bit for bit, and the training that follows."""

import functools
import gc
import threading

import pytest
import torch
from torch import nn
from warmmodels import Moody, Trainer, batches, same

import ettrain as ett
from ettrain.errors import EttrainError


def test_everything_is_bit_for_bit_as_before_a_first_step():
    trainer = Trainer()
    before = trainer.everything()
    result = ett.warm_compile(trainer.step, batches(1)[0])
    after = trainer.everything()
    assert (result.ran, result.error, result.guarantee, result.notes) == (True, None, True, [])
    assert all(p.grad is None for p in trainer.model.parameters())
    assert not trainer.optimizers[0].state
    assert trainer.scaler._scale is None
    assert {part: same(before[0][part], after[0][part]) for part in before[0]} == dict.fromkeys(before[0], True)
    assert before[1] == after[1]


def test_everything_is_bit_for_bit_as_before_in_the_midst_of_training():
    trainer = Trainer()
    for batch in batches(3):
        trainer.step(batch)
    before = trainer.everything()
    state = [id(optimizer.state[p]) for optimizer in trainer.optimizers for p in optimizer.state]
    assert ett.warm_compile(trainer.step, batches(5)[4]).guarantee
    after = trainer.everything()
    assert {part: same(before[0][part], after[0][part]) for part in before[0]} == dict.fromkeys(before[0], True)
    assert before[1] == after[1]
    assert state == [id(optimizer.state[p]) for optimizer in trainer.optimizers for p in optimizer.state]


def test_the_training_that_follows_is_the_same_bit_for_bit():
    runs = []
    for warm in (False, True):
        trainer = Trainer()
        if warm:
            ett.warm_compile(trainer.step, batches(9)[8])
        for batch in batches(4):
            trainer.step(batch)
        runs.append(trainer.everything()[0])
    assert {part: same(runs[0][part], runs[1][part]) for part in runs[0]} == dict.fromkeys(runs[0], True)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # dynamo looks at it for every input that is no leaf
def test_compiled_parts_are_compiled_and_not_again_for_the_real_batch():
    torch._dynamo.reset()
    trainer = Trainer(compiled="aot_eager")
    result = ett.warm_compile(trainer.step, batches(1)[0])
    assert result.graphs == 1
    counters = torch._dynamo.utils.counters["stats"]
    before = counters["unique_graphs"]
    for batch in batches(3):
        trainer.step(batch)
    assert counters["unique_graphs"] == before


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_what_a_thread_compiled_is_compiled_for_the_main_thread():
    torch._dynamo.reset()
    trainer = Trainer(compiled="aot_eager")
    start = ett.Startup()

    @start.stage(rng=True)
    def warm():
        assert threading.current_thread() is not threading.main_thread()
        return ett.warm_compile(trainer.step, batches(1)[0])

    assert start.run().warm.graphs == 1
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    trainer.step(batches(1)[0])
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before


def test_a_step_over_globals_and_closures_is_looked_through():
    model = Moody()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) if False else torch.optim.Adagrad([p for p in model.parameters() if p.requires_grad])
    count = 0
    tally = {"steps": 0}

    def forward(ids):
        return model(ids).sum()

    def step(batch):
        nonlocal count
        count += 1
        tally["steps"] += 1
        forward(batch[0]).backward()
        optimizer.step()

    before = {n: t.clone() for n, t in [*model.named_parameters(), *model.named_buffers()]}
    result = ett.warm_compile(step, batches(1)[0])
    assert result.guarantee
    assert set(result.protected) == {"Moody", "Adagrad"}
    assert (count, tally, model.calls) == (0, {"steps": 0}, 0)
    assert all(torch.equal(before[n], t) for n, t in [*model.named_parameters(), *model.named_buffers()])


def test_an_optimizer_that_is_hidden_is_found_by_its_parameters():
    model = nn.Linear(4, 4)

    class Engine:
        __slots__ = ("optimizer",)

    engine = Engine()
    engine.optimizer = torch.optim.Adam(model.parameters())
    Engine.__module__ = "torch.somewhere"

    def step(batch):
        model(batch).sum().backward()
        engine.optimizer.step()

    result = ett.warm_compile(step, torch.ones(2, 4))
    assert result.guarantee and "Adam" in result.protected
    assert not engine.optimizer.state


def test_what_cannot_be_guaranteed_is_said(capsys):
    model = nn.Linear(4, 4)
    hidden = [model]
    Hide = type("Hide", (), {"__module__": "torch.somewhere", "get": lambda self: hidden[0]})
    hide = Hide()
    result = ett.warm_compile(eval("lambda batch: hide.get()(batch).sum().backward()", {"hide": hide}), torch.ones(2, 4))
    assert not result.guarantee
    assert "pass model=" in capsys.readouterr().err
    gc.collect()

    def by_hand(batch):
        model(batch).sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad

    before = model.weight.clone()
    result = ett.warm_compile(by_hand, torch.ones(2, 4))
    assert torch.equal(model.weight, before)
    assert not result.guarantee and "no optimizer was found" in result.notes[0]


def test_a_step_that_fails_leaves_everything_as_it_was_and_training_goes_on(capsys):
    trainer = Trainer()

    def step(batch):
        trainer.step(batch)
        raise IndexError("index out of range in self")

    before = trainer.everything()
    result = ett.warm_compile(step, batches(1)[0])
    assert isinstance(result.error, IndexError) and not result.ran
    assert "IndexError" in capsys.readouterr().err
    after = trainer.everything()
    assert all(same(before[0][part], after[0][part]) for part in before[0]) and before[1] == after[1]
    with pytest.raises(IndexError):
        ett.warm_compile(step, batches(1)[0], strict=True)


def test_lazy_parameters_are_refused_before_anything_runs(capsys):
    model = nn.LazyLinear(3)
    ran = []
    result = ett.warm_compile(lambda batch: ran.append(model(batch)), torch.ones(2, 4))
    assert isinstance(result.error, TypeError) and not ran
    assert "lazy" in capsys.readouterr().err


def test_without_a_batch_nothing_happens(capsys):
    trainer = Trainer()
    result = ett.warm_compile(trainer.step, None)
    assert not result.ran and result.guarantee and trainer.counters.step == 0
    assert capsys.readouterr().err == ""


def test_what_cannot_be_put_back_is_an_error_and_not_another_training():
    model = nn.Linear(2, 2)

    class Stubborn(torch.nn.Parameter):
        def copy_(self, *args, **kwargs):
            raise RuntimeError("no")

    model.weight = Stubborn(torch.ones(2, 2))
    with pytest.raises(EttrainError, match="could not put back"):
        ett.warm_compile(lambda batch: model(batch), torch.ones(1, 2))


def test_the_copies_are_freed():
    class Big(nn.Linear):
        pass

    model = Big(64, 64)
    ett.warm_compile(lambda batch: model(batch).sum().backward(), torch.ones(2, 64))
    gc.collect()
    shapes = [tuple(t.shape) for t in gc.get_objects() if type(t) in (torch.Tensor, nn.Parameter) and t.shape == (64, 64)]
    assert len(shapes) == 1


def test_every_private_name_of_torch_is_there():
    from importlib import import_module

    from ettrain.boost.private import PRIVATE

    missing = [f"{module}.{name}" for module, names in PRIVATE.items() for name in names if not hasattr(import_module(module), name)]
    assert missing == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own, on import
@pytest.mark.parametrize(("has_state", "again"), [(False, 1), (True, 0)])
def test_a_compiled_optimizer_is_compiled_for_the_state_that_it_has(has_state, again):
    torch._dynamo.reset()
    model = nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters(), capturable=False)
    update = torch.compile(optimizer.step, backend="aot_eager")

    def step(batch):
        optimizer.zero_grad()
        model(batch).sum().backward()
        update()

    if has_state:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    assert ett.warm_compile(step, torch.ones(2, 4), model=model, optimizer=optimizer).ran
    counters = torch._dynamo.utils.counters["stats"]
    before = counters["unique_graphs"]
    for _ in range(3):
        step(torch.ones(2, 4))
    assert counters["unique_graphs"] - before == again


class Inner:
    def __init__(self, model, optimizer):
        self.model, self.optimizer, self.count, self.seen = model, optimizer, 0, []

    def __call__(self, batch):
        self.count += 1
        self.seen.append(len(batch))
        self.optimizer.zero_grad()
        self.model(batch).sum().backward()
        self.optimizer.step()


class Outer:
    def __init__(self, inner):
        self.inner = inner

    def step(self, batch):
        self.inner(batch)


WAYS = {
    "object": lambda inner: inner,
    "method of an object that holds it": lambda inner: Outer(inner).step,
    "partial": lambda inner: functools.partial(inner),
    "lambda": lambda inner: lambda batch: inner(batch),
    "compiled": lambda inner: torch.compile(lambda batch: inner(batch), backend="eager"),
}


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("way", WAYS)
def test_a_step_of_any_form_is_looked_through(way):
    torch._dynamo.reset()
    model = nn.Linear(4, 1)
    inner = Inner(model, torch.optim.Adam(model.parameters()))
    weight = model.weight.clone()
    result = ett.warm_compile(WAYS[way](inner), torch.ones(2, 4))
    assert result.ran and result.guarantee, result
    assert torch.equal(model.weight, weight) and not inner.optimizer.state
    assert (inner.count, inner.seen) == (0, [])


def test_what_is_too_large_to_copy_is_left_and_said(capsys):
    rows = list(range(20_000))
    model = nn.Linear(2, 1)

    def step(batch):
        rows.append(1)
        model(batch).sum().backward()

    result = ett.warm_compile(step, torch.ones(1, 2))
    assert not result.guarantee and len(rows) == 20_001
    assert "a list of 20000 items" in capsys.readouterr().err

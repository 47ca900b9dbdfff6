"""The start's parts on an accelerator."""

import threading

import pytest
import torch
from warmmodels import batches, same

import ettrain as ett

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")]


def test_a_warm_step_on_a_device_changes_nothing_there():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    compiled = torch.compile(model)

    def step(batch):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            compiled(batch.cuda()).square().mean().backward()
        optimizer.step()

    before = [tensor.clone() for tensor in model.state_dict().values()], torch.cuda.get_rng_state_all()
    result = ett.warm_compile(step, torch.rand(4, 8))
    assert result.guarantee and result.ran, result
    assert same(before, ([*model.state_dict().values()], torch.cuda.get_rng_state_all()))
    assert not optimizer.state and all(p.grad is None for p in model.parameters())


def test_stages_are_on_the_callers_device():
    last = torch.cuda.device_count() - 1
    torch.cuda.set_device(last)
    start = ett.Startup()

    @start.stage
    def where():
        assert threading.current_thread() is not threading.main_thread()
        return torch.cuda.current_device(), torch.ones(1, device="cuda").device.index

    assert start.run().where == (last, last)


def test_a_recorded_batch_is_made_on_its_device(tmp_path):
    real = [(ids.cuda(), targets) for ids, targets in batches(2)]
    list(ett.first_batch(real, schema=tmp_path / "batch.json"))
    made = ett.first_batch(real, schema=tmp_path / "batch.json").compile_batch
    assert (made[0].device.type, made[1].device.type) == ("cuda", "cpu")

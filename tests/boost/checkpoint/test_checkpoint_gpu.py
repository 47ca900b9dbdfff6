"""The Checkpointer where the model is on a device: copied beside the next step, restored to the bit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ettrain

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def made(folder):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1024, 1024), nn.Dropout(0.1), nn.Linear(1024, 1024)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    return model, optimizer, ettrain.Checkpointer(folder, model=model, optimizer=optimizer, every=None)


def train(model, optimizer, checkpointer, begin, end):
    for number in range(begin, end):
        optimizer.zero_grad()
        model(torch.ones(8, 1024, device="cuda")).square().mean().backward()
        optimizer.step()
        checkpointer.stepped(number + 1)


def test_a_device_is_saved_beside_the_next_step_and_restored_to_the_bit(tmp_path):
    model, optimizer, checkpointer = made(tmp_path)
    train(model, optimizer, checkpointer, 0, 5)
    checkpointer.save(5)
    train(model, optimizer, checkpointer, 5, 10)
    checkpointer.wait()
    expected = [value.clone() for value in model.state_dict().values()]
    checkpointer._release()
    again, fresh, second = made(tmp_path)
    assert second.restore() == 5
    train(again, fresh, second, 5, 10)
    assert all(torch.equal(one, other) for one, other in zip(expected, again.state_dict().values(), strict=True))
    assert all(state["step"].device.type == "cuda" for state in fresh.state.values())
    second._release()

"""Layers of 8-bit weights answer as the layers they take the place of, to within the rounding of their rows."""

import pytest
import torch
from torch import nn

from ettrain.boost.publish.int8 import RowBag, RowLinear, RowTable, quantized


def close(found, expected, allowed=0.02):
    assert found.shape == expected.shape and found.dtype == expected.dtype
    assert float((found - expected).abs().max()) <= allowed * float(expected.abs().max())


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(3)


def test_a_table_gives_its_rows_to_within_half_a_step_of_each():
    weight = torch.randn(300, 7) * torch.logspace(-3, 3, 300)[:, None]
    step = (weight.amax(1) - weight.amin(1)) / 255
    gap = (RowTable(weight)(torch.arange(300)) - weight).abs().amax(1)
    assert bool((gap <= 0.51 * step + 1e-6 * weight.abs().amax(1)).all())


def test_equal_values_and_zeros_are_kept_exactly():
    weight = torch.tensor([[0.0, 0.0], [2.5, 2.5], [-1.0, 1.0]])
    assert torch.equal(RowTable(weight)(torch.tensor([[0, 1]])), weight[:2][None])


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("padding", [None, 3])
def test_a_bag_with_rows_of_ids(mode, padding):
    bag = nn.EmbeddingBag(50, 6, mode=mode, padding_idx=padding)
    ids = torch.randint(0, 6, (9, 5))
    ids[0] = 3
    close(RowBag(bag)(ids), bag(ids).detach())


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("padding", [None, 3])
def test_a_bag_with_offsets_empty_bags_among_them(mode, last, padding):
    bag = nn.EmbeddingBag(50, 6, mode=mode, include_last_offset=last, padding_idx=padding)
    ids = torch.randint(0, 6, (12,))
    offsets = torch.tensor([0, 0, 4, 4, 9, *([12] if last else [])])
    close(RowBag(bag)(ids, offsets), bag(ids, offsets).detach())


def test_a_bag_with_weights_of_samples():
    bag = nn.EmbeddingBag(50, 6, mode="sum")
    ids, weights = torch.randint(0, 50, (9, 5)), torch.rand(9, 5)
    close(RowBag(bag)(ids, per_sample_weights=weights), bag(ids, per_sample_weights=weights).detach())


@pytest.mark.parametrize("shape", [(1, 32), (17, 32), (4, 5, 32), (0, 32)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("integer", [True, False])
def test_a_linear_layer(shape, bias, integer):
    linear = nn.Linear(32, 24, bias=bias)
    x = torch.randn(shape)
    found = RowLinear(linear, integer=integer)(x)
    if x.numel():
        close(found, linear(x).detach())
    assert found.shape == linear(x).shape


def test_half_precision_stays_half_precision():
    linear = nn.Linear(32, 24).to(torch.bfloat16)
    assert RowLinear(linear)(torch.randn(3, 32, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_what_cannot_be_done_is_left_and_said():
    class Special(nn.Linear):
        pass

    model = nn.ModuleDict({
        "plain": nn.Linear(4, 4), "special": Special(4, 4), "bag": nn.EmbeddingBag(9, 4, mode="max"), "bounded": nn.Embedding(9, 4, max_norm=1.0),
        "embed": nn.Embedding(9, 4), "head": nn.Linear(4, 9, bias=False), "norm": nn.LayerNorm(4),
    })  # fmt: skip
    model["head"].weight = model["embed"].weight
    told = quantized(model)
    assert told["quantized"] == {"Linear": 1}
    assert set(told["left"]) == {"special", "bag", "bounded", "embed", "head"}
    assert told["left"]["head"] == "its weight is shared with another layer"


@pytest.mark.parametrize("offsets", [False, True])
def test_it_can_be_exported_with_as_many_rows_as_one_likes(offsets):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag, self.top = nn.EmbeddingBag(50, 6), nn.Linear(6, 2)

        def forward(self, ids, begins=None):
            return self.top(self.bag(ids, begins))

    model = Net().requires_grad_(requires_grad=False).eval()
    one = (torch.randint(0, 50, (12,)), torch.tensor([0, 3, 7])) if offsets else (torch.randint(0, 50, (5, 3)),)
    two = (torch.randint(0, 50, (20,)), torch.tensor([0, 3, 7, 8, 15])) if offsets else (torch.randint(0, 50, (8, 3)),)
    expected = model(*two)
    quantized(model)
    program = torch.export.export(model, one, dynamic_shapes=tuple({0: torch.export.Dim.AUTO} for _ in one) if offsets else ({0: torch.export.Dim.AUTO}, None)[: len(one)])
    close(program.module()(*two), expected, allowed=0.03)

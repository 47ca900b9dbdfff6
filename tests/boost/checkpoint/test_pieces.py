"""Tensors read straight into their place are those that DCP reads; what is not plain is left to it."""

import warnings

import pytest
import torch
import torch.distributed.checkpoint as dcp

from ettrain.boost.checkpoint import pieces, reading


def write(folder, state):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, storage_writer=dcp.FileSystemWriter(folder), no_dist=True)
    return reading.reader_of(folder)


KINDS = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", KINDS)
def test_whole_tensors_are_read_as_they_were(tmp_path, dtype):
    full = (torch.randn(37, 5) * 10).to(dtype)
    reader = write(tmp_path / "ck", {"a": full, "empty": full[:0].clone(), "one": full[0, 0].clone()})
    wanted = {"a": torch.zeros(37, 5, dtype=dtype), "empty": torch.zeros(0, 5, dtype=dtype), "one": torch.zeros((), dtype=dtype)}
    assert pieces.fill(wanted, reader) == {}
    assert torch.equal(wanted["a"], full) and torch.equal(wanted["one"], full[0, 0])


def test_large_ones_are_read_without_a_copy_beside_them(tmp_path):
    full = torch.randn(3, 1 << 20)
    reader = write(tmp_path / "ck", {"a": full})
    wanted = {"a": torch.zeros_like(full)}
    monkey = pytest.MonkeyPatch()
    monkey.setattr(torch, "load", lambda *args, **kwargs: pytest.fail("a piece was loaded"))
    assert pieces.fill(wanted, reader) == {}
    monkey.undo()
    assert torch.equal(wanted["a"], full)


def test_what_is_not_plain_is_left_to_dcp(tmp_path):
    full = torch.randn(6, 4)
    reader = write(tmp_path / "ck", {"a": full, "turned": full.t(), "epoch": 3})
    cast, turned, other = torch.zeros(6, 4, dtype=torch.float64), torch.zeros(4, 6), torch.zeros(4, 6).t()
    left = pieces.fill({"a": cast, "epoch": 0}, reader)
    assert set(left) == {"a", "epoch"}
    wanted = {"turned": turned}
    for name in (rest := pieces.fill(wanted, reader)):
        assert name == "turned"
    reading.load(rest, reader, no_dist=True)
    assert torch.equal(turned, full.t())
    assert set(pieces.fill({"a": other}, reader)) == {"a"}


def test_damage_is_left_to_be_told_by_dcp(tmp_path):
    reader = write(tmp_path / "ck", {"a": torch.randn(600, 4)})
    reader.metadata()
    file = tmp_path / "ck" / "__0_0.distcp"
    file.write_bytes(bytes(file.stat().st_size))
    assert set(pieces.fill({"a": torch.zeros(600, 4)}, reader)) == {"a"}

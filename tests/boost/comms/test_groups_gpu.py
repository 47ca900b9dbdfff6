"""process_groups on NCCL: members make their groups alone, although the default group has a device bound to it."""

import pytest
import torch
from commranks import run_ranks


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two accelerators")
def test_members_make_groups_alone_with_nccl_and_a_bound_device():
    told = run_ranks("groups_nccl", 2)
    assert [one["sums"] for one in told] == [[1.0, 11.0], [10.0, 11.0]]
    assert [one["bound"] for one in told] == ["cuda:0", "cuda:1"]

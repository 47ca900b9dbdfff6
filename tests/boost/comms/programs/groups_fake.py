"""Groups of a mesh at a size no test machine has: calls of new_group, by init_device_mesh and by ours."""

import json
import sys

import torch.distributed as dist
from counting import CALLS, count_calls
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from ettrain.boost.comms import mesh

NEW_GROUP = "_new_group_with_tag"  # what new_group is, however it was imported
count_calls(NEW_GROUP)
told = {}
for world in map(int, sys.argv[1:]):
    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    CALLS.clear()
    init_device_mesh("cpu", (world // 4, 4), mesh_dim_names=("outer", "inner"))
    plain = CALLS[NEW_GROUP]
    CALLS.clear()
    first = mesh("cpu", (world // 4, 4), ("outer", "inner"))
    again = mesh("cpu", (world // 4, 4), ("a", "b"))
    told[world] = [plain, CALLS[NEW_GROUP], first.get_group("inner") is again.get_group("b"), first["outer"].size(), first.get_coordinate()]
    dist.destroy_process_group()
print(json.dumps(told), flush=True)

"""Three ranks ask for groups in orders that contradict each other, use them, destroy one, and make a mesh."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from counting import CountingStore
from torch.distributed.tensor import Shard, distribute_tensor

import ettrain as ett
from ettrain.boost.comms import mesh
from ettrain.errors import UsageError

PAIRS = [(0, 1), (1, 2), (0, 2)]
ORDER = {0: [0, 2], 1: [1, 0], 2: [2, 1]}


def total(group, ranks):
    value = torch.tensor([float(10 ** dist.get_rank())])
    dist.all_reduce(value, group=group)
    return value.item() == sum(10**rank for rank in ranks)


def refused(call):
    try:
        call()
    except UsageError as error:
        return str(error)
    return ""


def run(shared):
    told = {"before": refused(lambda: ett.process_groups([0]))}
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = CountingStore(shared)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=20))
    told["all"] = ett.process_groups() is ett.process_groups([2, 1, 0]) is ett.process_groups(backend="gloo") is dist.group.WORLD
    store.taken()
    mine = {index: ett.process_groups(PAIRS[index]) for index in ORDER[rank]}
    told["made"] = store.taken()
    told["same"] = all(ett.process_groups(iter(PAIRS[index][::-1])) is group for index, group in mine.items())
    told["outside"] = [ett.process_groups(pair) is dist.GroupMember.NON_GROUP_MEMBER for pair in PAIRS if rank not in pair]
    told["asked again"] = store.taken()
    told["sums"] = [total(mine[index], PAIRS[index]) for index in sorted(mine)]
    told["used"] = store.taken()
    dist.barrier()

    store.taken()
    plain = [dist.new_group(list(pair)) for pair in PAIRS]
    told["plain made"] = store.taken()
    told["plain sums"] = [total(plain[index], PAIRS[index]) for index in sorted(mine)]

    slow = timedelta(seconds=9)
    other = ett.process_groups(timeout=slow)
    told["timeout is another"] = other is not dist.group.WORLD and other is ett.process_groups(range(3), timeout=slow)
    gathered = [None] * world
    dist.all_gather_object(gathered, rank, group=other)
    dist.barrier(group=other)
    told["gathered"] = gathered
    dist.destroy_process_group(other)
    anew = ett.process_groups(timeout=slow)
    told["anew"] = anew is not other and total(anew, range(3))

    device = dist.group.WORLD.bound_device_id = torch.device("cuda:0")
    bound = ett.process_groups(timeout=timedelta(seconds=8))
    told["bound device"] = [str(bound.bound_device_id), dist.group.WORLD.bound_device_id == device]
    dist.group.WORLD.bound_device_id = None
    told["bound sums"] = total(bound, range(3))

    line = mesh("cpu", (1, world), ("outer", "inner"))
    told["mesh"] = line["inner"].get_group() is dist.group.WORLD and line.shape == (1, world)
    told["part"] = distribute_tensor(torch.arange(6.0), line["inner"], [Shard(0)]).to_local().tolist()
    told["wrong ranks"] = refused(lambda: ett.process_groups([0, 7]))
    told["wrong shape"] = refused(lambda: mesh("cpu", (2, 2), ("a", "b")))
    told["lazy left"] = "TORCH_GLOO_LAZY_INIT" in os.environ
    dist.barrier()
    dist.destroy_process_group()
    told["gone"] = refused(lambda: ett.process_groups([0]))
    return told

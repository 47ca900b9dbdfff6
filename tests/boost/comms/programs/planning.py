"""Ranks save changing states with DCP's plan caching and without: bytes of the planning, and what is read back."""

import pickle

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

sent = [0]


def measured(name):
    run = getattr(dist, name)

    def wrapper(*args, **kwargs):
        given = kwargs.get("object", kwargs.get("scatter_object_input_list"))
        sent[0] += len(pickle.dumps(given)) if given is not None else 0
        return run(*args, **kwargs)

    setattr(dist, name, wrapper)


def state(mesh, names, value):
    return {name: distribute_tensor(torch.full((6, 4), value), mesh, [Shard(0)], src_data_rank=None) for name in names}


A, B = [f"a{index}" for index in range(12)], ["b0", "b1"]
SAVES = [(A, 1.0), (A, 2.0), (A, 3.0), (B, 4.0), (A, 5.0), (A + B, 6.0), (A, 7.0)]

def run(folder):
    for name in ("gather_object", "scatter_object_list"):
        measured(name)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    told = {"plain": [], "cached": [], "right": []}
    for kind in ("plain", "cached"):
        for number, (names, value) in enumerate(SAVES):
            planner = DefaultSavePlanner(enable_plan_caching=kind == "cached")
            sent[0] = 0
            where = f"{folder}/{kind}-{number}"
            dcp.save(state(mesh, names, value), checkpoint_id=where, planner=planner)
            told[kind].append(sent[0])
            back = state(mesh, names, 0.0)
            dcp.load(back, checkpoint_id=where)
            kept = sorted(dcp.FileSystemReader(where).read_metadata().state_dict_metadata)
            told["right"].append(kept == sorted(names) and all(bool((tensor.to_local() == value).all()) for tensor in back.values()))
    return told

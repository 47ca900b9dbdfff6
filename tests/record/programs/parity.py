"""Trains and looks at all that a program can see of torch; run with and without the recorder, it must say the same."""
# ruff: noqa: ICN001, NPY002

import copy
import hashlib
import inspect
import io
import json
import os
import pickle
import random
import signal
import sys
import threading
import warnings

import numpy
import torch
import torch.distributed.checkpoint as dcp
import torch.distributed.fsdp
import torch.nn.parallel
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("error")
torch.manual_seed(1)
random.seed(1)
numpy.random.seed(1)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Dropout(0.1), nn.ReLU(), nn.Linear(32, 1))
opt = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cpu")
for epoch in range(2):
    model.train()
    for x, y in DataLoader(TensorDataset(torch.randn(160, 16), torch.randn(160, 1)), batch_size=16, shuffle=True, num_workers=epoch):
        opt.zero_grad()
        scaler.scale((model(x) - y).pow(2).mean()).backward()
        scaler.step(opt)
        scaler.update()
    model.eval()
    with torch.no_grad():
        model(torch.randn(4, 16))
    torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, "last.pt")
    opt.load_state_dict(torch.load("last.pt")["opt"])

with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    torch.autograd.backward(torch.ones((), requires_grad=True), grad_variables=torch.ones(()))
    dcp.save({"w": torch.ones(1)}, dcp.FileSystemWriter(f"by_position-{os.getpid()}"))

functions = {
    "torch.save": torch.save, "torch.load": torch.load, "torch.serialization.load": torch.serialization.load,
    "torch.autograd.backward": torch.autograd.backward, "torch.autograd.grad": torch.autograd.grad,
    "init": torch.distributed.init_process_group, "new_group": torch.distributed.new_group, "destroy": torch.distributed.destroy_process_group,
    "dcp.save": dcp.save, "dcp.load": dcp.load, "dcp.async_save": dcp.async_save, "fully_shard": torch.distributed.fsdp.fully_shard,
    "Module.train": nn.Module.train, "DDP": nn.parallel.DistributedDataParallel.__init__, "FSDP": torch.distributed.fsdp.FullyShardedDataParallel.__init__,
    "scaler": torch.amp.GradScaler.step, "lazy": torch.cuda._lazy_init, "loader": DataLoader.__iter__,
    "next": torch.utils.data.dataloader._BaseDataLoaderIter.__next__,
}
described = {
    name: [str(inspect.signature(f)), f.__name__, f.__qualname__, f.__module__, (f.__doc__ or "")[:80], hashlib.sha1(inspect.getsource(f).encode()).hexdigest()]
    for name, f in functions.items()
}
by_reference = [pickle.loads(pickle.dumps(f)) is f for f in (torch.save, torch.load, torch.autograd.backward, dcp.save)]
whole = io.BytesIO()
torch.save(opt, whole)
whole.seek(0)
again = torch.load(whole, weights_only=False)
digest = hashlib.sha1(b"".join(p.detach().numpy().tobytes() for p in [*model.parameters(), *model.buffers()]))
for group in opt.state.values():
    digest.update(b"".join(v.numpy().tobytes() for v in group.values()))
attributes = sorted(k for k in vars(opt) if not k.startswith("_zero_grad_profile"))
print(json.dumps({
    "weights": digest.hexdigest(),
    "rng": [torch.rand(1).item(), random.random(), float(numpy.random.rand())],
    "functions": described,
    "by_reference": by_reference,
    "optimizer": [attributes, list(opt.state_dict()), type(copy.deepcopy(opt)).__name__, sorted(vars(again)) == sorted(vars(opt)), len(opt._optimizer_step_post_hooks)],
    "module": [sorted(vars(model)), len(nn.modules.module._global_forward_pre_hooks), nn.Module.__call__ is nn.Module._wrapped_call_impl],
    "signals": [str(signal.getsignal(s)).split(" at 0x")[0] for s in sorted(signal.valid_signals())],
    "warnings": [[w.category.__name__, os.path.basename(w.filename), w.lineno] for w in warned],
    "threads": [t.name for t in threading.enumerate()],
    "argv": sys.argv[1:],
    "modules": sorted(m for m in sys.modules if m.split(".")[0] == "torch"),
    "scaler": scaler.state_dict(),
}), flush=True)
if "DIES" in os.environ:
    raise ValueError("on purpose")

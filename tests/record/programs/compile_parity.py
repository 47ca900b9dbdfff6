"""What dynamo makes of training steps; the same program is run with and without the recorder, and must say the same."""
# ruff: noqa: E402

import hashlib
import json
import os
import sys
import warnings

warnings.filterwarnings("error", message="Using `torch.compile")
import torch
import torch._dynamo
from torch import nn
from torch._dynamo import trace_rules
from torch._dynamo.utils import counters

torch.set_num_threads(1)
torch.manual_seed(0)
X = torch.randn(16, 8)
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, x):
        return self.layers(x)


def net():
    torch.manual_seed(1)
    return Net()


@case
def compiled_function_first():
    """Nothing was ever called before dynamo traces this."""
    model = net()
    compiled = torch.compile(lambda x: model(x).sum(), backend="eager", fullgraph=True)
    return [compiled(X) for _ in range(3)]


@case
def compiled_module():
    model = torch.compile(net(), backend="eager", fullgraph=True)
    return [model(X) for _ in range(3)]


@case
def module_compile_in_place():
    model = net()
    model.compile(backend="eager", fullgraph=True)
    return [model(X) for _ in range(3)]


@case
def whole_step():
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.compile(backend="eager")
    def step():
        opt.zero_grad()
        loss = model(X).pow(2).mean()
        loss.backward()
        opt.step()
        return loss.detach()

    return [step() for _ in range(4)]


@case
def compiled_optimizer():
    model = net()
    opt = torch.optim.Adam(model.parameters())
    step = torch.compile(opt.step, backend="eager")
    for _ in range(4):
        opt.zero_grad()
        model(X).pow(2).mean().backward()
        step()
    return list(model.parameters())


@case
def gradients_inside():
    model = net()
    params = list(model.parameters())

    @torch.compile(backend="eager")
    def grads():
        return torch.autograd.grad(model(X).pow(2).mean(), params)

    return [g for _ in range(3) for g in grads()]


@case
def modes_inside():
    model = net()

    @torch.compile(backend="eager", fullgraph=True)
    def sample(x):
        model.eval()
        y = model(x)
        model.train()
        return y

    return [sample(X) for _ in range(3)]


@case
def aot_with_lazy_backward():
    model = torch.compile(net(), backend="aot_eager")
    for size in (4, 5, 6):
        model(torch.ones(size, 8)).sum().backward()
    return list(model.parameters())


@case
def loop_with_loader():
    from torch.utils.data import DataLoader, TensorDataset

    model = torch.compile(net(), backend="eager")
    opt = torch.optim.AdamW(model.parameters())
    for (x,) in DataLoader(TensorDataset(torch.ones(16, 8)), batch_size=4):
        opt.zero_grad()
        model(x).pow(2).mean().backward()
        opt.step()
    model.eval()
    model(X)
    return list(model.parameters())


def numbers(tensors):
    data = b"".join(t.detach().contiguous().numpy().tobytes() for t in tensors)
    return hashlib.sha1(data).hexdigest()


results = {}
for name in sys.argv[1:] or list(CASES):
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    outcome = numbers(CASES[name]())
    # the second loading counts the same for both: the text of a break may name a line of a file of ours, which is not the program's
    breaks = sorted(counters["graph_break"].values())
    results[name] = [outcome, dict(counters["frames"]), dict(counters["stats"]), breaks, torch.rand(1).item()]
functions = {
    "grad": torch.autograd.grad, "backward": torch.autograd.backward, "save": torch.save, "load": torch.load, "_lazy_init": torch.cuda._lazy_init,
    "optimizer hook": torch.optim.Optimizer.profile_hook_step,
}
results["rules"] = {name: getattr(trace_rules.lookup(function), "__name__", None) for name, function in functions.items()}
print(json.dumps(results), flush=True)
os._exit(0)

"""Counts steps of every way to train that changes how optimizers are called; one forked child per case."""
# ruff: noqa: E402

import os
import sys
import warnings

warnings.simplefilter("ignore")
import torch
from lab import in_child, tell
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
X = torch.randn(16, 8)
SGD = torch.optim.SGD
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def net():
    return nn.Linear(8, 1)


def back(model, x=X):
    model.zero_grad()
    model(x).pow(2).mean().backward()


def loop(step, model=None, n=5):
    model = model or net()
    for _ in range(n):
        back(model)
        step()


@case
def plain():
    model = net()
    loop(SGD(model.parameters(), lr=0.1).step, model)


@case
def accumulation():
    model = net()
    opt = SGD(model.parameters(), lr=0.1)
    for i in range(20):
        back(model)
        if i % 4 == 3:
            opt.step()


@case
def accumulation_with_loader():
    model = net()
    opt = SGD(model.parameters(), lr=0.1)
    for i, (x,) in enumerate(DataLoader(TensorDataset(torch.randn(80, 8)), batch_size=4)):
        back(model, x)
        if i % 4 == 3:
            opt.step()


@case
def gan():
    gen, dis = net(), net()
    opt_d, opt_g = torch.optim.Adam(dis.parameters()), torch.optim.Adam(gen.parameters())
    for (x,) in DataLoader(TensorDataset(torch.randn(20, 8)), batch_size=4):
        back(dis, x)
        opt_d.step()
        back(gen, x)
        opt_g.step()


@case
def four_optimizers_in_backward():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    opts = {p: SGD([p], lr=0.1) for p in model.parameters()}

    def update(p):
        opts[p].step()
        opts[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(update)
    for _ in range(5):
        model(X).pow(2).mean().backward()


@case
def apply_optimizer_in_backward():
    from torch.distributed.optim import _apply_optimizer_in_backward

    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    _apply_optimizer_in_backward(SGD, model.parameters(), {"lr": 0.1})
    for _ in range(5):
        model(X).pow(2).mean().backward()


@case
def zero_redundancy():
    import torch.distributed as dist
    from torch.distributed.optim import ZeroRedundancyOptimizer

    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    model = net()
    loop(ZeroRedundancyOptimizer(model.parameters(), SGD, lr=0.1).step, model)
    dist.destroy_process_group()


@case
def subclass_calling_super():
    class Sub(SGD):
        def step(self, closure=None):
            return super().step(closure)

    model = net()
    loop(Sub(model.parameters(), lr=0.1).step, model)


@case
def subclass_of_its_own():
    class Own(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {"lr": 0.1})

        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    p.data.add_(p.grad, alpha=-0.01)

    model = net()
    loop(Own(model.parameters()).step, model)


class _Wrapping(torch.optim.Optimizer):
    def __init__(self, base):
        self.base = base
        super().__init__(base.param_groups, {})

    def step(self, closure=None):
        self.base.step()


@case
def wrapper_optimizer():
    model = net()
    loop(_Wrapping(SGD(model.parameters(), lr=0.1)).step, model)


@case
def base_stepped_twice():
    class Twice(_Wrapping):
        def step(self, closure=None):
            self.base.step()
            self.base.step()

    model = net()
    loop(Twice(SGD(model.parameters(), lr=0.1)).step, model)


@case
def duck_typed_wrapper():
    class Duck:
        def __init__(self, opt):
            self.opt = opt

        def step(self):
            self.opt.step()

    model = net()
    loop(Duck(SGD(model.parameters(), lr=0.1)).step, model)


@case
def lbfgs_closures():
    model = net()
    opt = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure():
        opt.zero_grad()
        loss = model(X).pow(2).mean()
        loss.backward()
        return loss

    for _ in range(5):
        opt.step(closure)


@case
def fused():
    model = net()
    loop(torch.optim.AdamW(model.parameters(), fused=True).step, model)


@case
def foreach():
    model = net()
    loop(torch.optim.AdamW(model.parameters(), foreach=True).step, model)


@case
def scheduler():
    model = net()
    opt = SGD(model.parameters(), lr=0.1)
    sched = torch.optim.lr_scheduler.StepLR(opt, 1)

    def step():
        opt.step()
        sched.step()

    loop(step, model)


@case
def bound_step_captured():
    model = net()
    step = torch.optim.Adam(model.parameters()).step
    loop(step, model)


@case
def grad_scaler_with_infinities():
    model = net()
    opt, scaler = SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", enabled=True)
    for i in range(7):
        opt.zero_grad()
        loss = model(X).pow(2).mean()
        if i in (1, 4):
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()


@case
def grad_scaler_disabled():
    model = net()
    opt, scaler = SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", enabled=False)

    def step():
        scaler.step(opt)
        scaler.update()

    loop(step, model)


@case
def manual_sgd():
    model = net()

    def step():
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad

    loop(step, model)


@case
def reentrant_checkpoint_by_hand():
    from torch.utils.checkpoint import checkpoint

    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1))
    for _ in range(5):
        x = X.clone().requires_grad_()
        checkpoint(model, x, use_reentrant=True).pow(2).mean().backward()


@case
def reentrant_checkpoint():
    from torch.utils.checkpoint import checkpoint

    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    opt = SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        x = X.clone().requires_grad_()
        checkpoint(model, x, use_reentrant=True).pow(2).mean().backward()
        opt.step()


@case
def autograd_grad():
    model = net()
    opt = SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        params = list(model.parameters())
        for p, g in zip(params, torch.autograd.grad(model(X).pow(2).mean(), params)):
            p.grad = g
        opt.step()


@case
def loaders_zipped():
    model = net()
    opt = SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(20, 8))
    for (a,), (b,) in zip(DataLoader(data, batch_size=4), DataLoader(data, batch_size=4)):
        back(model, a + b)
        opt.step()


@case
def gan_with_two_loaders():
    gen, dis = net(), net()
    opt_d, opt_g = SGD(dis.parameters(), lr=0.1), SGD(gen.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(20, 8))
    for (a,), (b,) in zip(DataLoader(data, batch_size=4), DataLoader(data, batch_size=4)):
        back(dis, a)
        opt_d.step()
        back(gen, b)
        opt_g.step()


@case
def optimizer_made_anew_with_loader():
    model = net()
    for (x,) in DataLoader(TensorDataset(torch.randn(20, 8)), batch_size=4):
        opt = SGD(model.parameters(), lr=0.1)
        back(model, x)
        opt.step()


@case
def compiled_optimizer_step():
    model = net()
    opt = torch.optim.Adam(model.parameters())
    loop(torch.compile(opt.step, backend="eager"), model)


@case
def two_models_in_turn():
    a, b = net(), net()
    opt_a, opt_b = SGD(a.parameters(), lr=0.1), SGD(b.parameters(), lr=0.1)
    for i in range(5):
        model, opt = ((a, opt_a), (b, opt_b))[i % 2]
        for (x,) in DataLoader(TensorDataset(torch.randn(4, 8)), batch_size=4):
            back(model, x)
            opt.step()


def counted(function):
    from ettrain.record.recorder import recorder

    torch.manual_seed(0)
    function()
    beat = recorder.beat
    return {
        "steps": recorder.steps, "calls": recorder.rule.calls, "backwards": recorder.backwards, "skipped": recorder.skipped,
        "source": recorder.source, "beat_step": beat[2], "beat_skipped": beat[9],
    }


wanted = sys.argv[1:] or list(CASES)
results = {}
for name in wanted:
    os.environ.pop("RANK", None)
    results[name] = in_child(lambda name=name: counted(CASES[name]), job_dir=f"{os.environ['ETT_JOB_DIR']}-{name}")[0]
    os.environ["ETT_JOB_DIR"] = os.environ["ETT_JOB_DIR"].removesuffix(f"-{name}")
tell(results)

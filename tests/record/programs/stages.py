"""Programs whose stages must be found, or must not; one forked child and one job per case."""
# ruff: noqa: BLE001, E402

import copy
import os
import sys
import time
import warnings
from pathlib import Path

warnings.simplefilter("ignore")
import torch
import torch._dynamo
from lab import in_child, tell
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import ettrain as ett

ROOT = Path(os.environ["ETT_JOB_DIR"]).parent
torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
CASES = {}
SGD = torch.optim.SGD


def case(function):
    CASES[function.__name__] = function
    return function


def loader(n=4):
    return DataLoader(TensorDataset(torch.randn(n * 4, 8)), batch_size=4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.norm(self.body(x)))


def epoch(model, opt, batches, pause=0.0):
    for (x,) in batches:
        opt.zero_grad()
        model(x).pow(2).mean().backward()
        opt.step()
        time.sleep(pause)


@torch.no_grad()
def evaluate(model, batches, pause=0.01):
    for (x,) in batches:
        model(x)
        time.sleep(pause)


def trainer(model=None):
    model = model or Net()
    return model, SGD(model.parameters(), lr=0.1)


@case
def evaluation_by_loader():
    model, opt = trainer()
    for _ in range(2):
        epoch(model, opt, loader())
        evaluate(model, loader())


@case
def evaluation_by_mode():
    """nanoGPT's way: no loader, an evaluation before the first step, and modes set on the module."""
    model, opt = trainer()
    for step in range(6):
        if step % 3 == 0:
            model.eval()
            with torch.no_grad():
                for _ in range(3):
                    model(torch.randn(4, 8))
                    time.sleep(0.01)
            model.train()
        opt.zero_grad()
        model(torch.randn(4, 8)).mean().backward()
        opt.step()


@case
def evaluation_by_both():
    model, opt = trainer()
    for _ in range(2):
        model.train()
        epoch(model, opt, loader())
        model.eval()
        evaluate(model, loader())


@case
def evaluation_of_the_inner_module():
    model, opt = trainer()
    outer = nn.Sequential(model)
    for _ in range(2):
        epoch(outer, opt, loader())
        model.eval()
        for _ in range(3):
            with torch.no_grad():
                model(torch.randn(4, 8))
            time.sleep(0.01)
        outer.train()
    epoch(outer, opt, loader())


@case
def evaluation_of_a_copy():
    """An average of the weights is evaluated; nobody ever puts it back in training mode."""
    model, opt = trainer()
    average = copy.deepcopy(model)
    for _ in range(2):
        epoch(model, opt, loader())
        average.eval()
        evaluate(average, loader())
    epoch(model, opt, loader())


@case
def evaluation_at_the_end():
    model, opt = trainer()
    epoch(model, opt, loader())
    model.eval()
    with torch.no_grad():
        model(torch.randn(4, 8))
    time.sleep(0.05)


@case
def evaluation_cut_off():
    model, opt = trainer()
    epoch(model, opt, loader())
    for (x,) in loader():
        with torch.no_grad():
            model(x)
        break
    epoch(model, opt, loader())


@case
def frozen_norm_each_iteration():
    model, opt = trainer()
    for _ in range(8):
        model.train()
        model.norm.eval()
        opt.zero_grad()
        model(torch.randn(4, 8)).mean().backward()
        opt.step()
        time.sleep(0.005)


@case
def frozen_norm_by_override():
    class Frozen(Net):
        def train(self, mode=True):
            super().train(mode)
            self.norm.eval()
            return self

    model, opt = trainer(Frozen())
    for _ in range(2):
        model.train()
        epoch(model, opt, loader(), 0.005)
        model.eval()
        evaluate(model, loader())
    model.train()
    epoch(model, opt, loader(), 0.005)


@case
def teacher_in_eval():
    model, opt = trainer()
    teacher = Net().eval()
    for _ in range(8):
        teacher.eval()
        with torch.no_grad():
            target = teacher(torch.ones(4, 8))
        opt.zero_grad()
        (model(torch.randn(4, 8)) - target).pow(2).mean().backward()
        opt.step()
        time.sleep(0.005)


class Slow(Dataset):
    def __init__(self, waits):
        self.waits = waits

    def __len__(self):
        return len(self.waits)

    def __getitem__(self, index):
        time.sleep(self.waits[index])
        return torch.randn(8)


@case
def first_batch():
    model, opt = trainer()
    batches = iter(DataLoader(Slow([0.1] + [0.001] * 7)))
    time.sleep(1)
    for x in batches:
        opt.zero_grad()
        model.head(x).mean().backward()
        opt.step()


@case
def waits_long_and_short():
    model, opt = trainer()
    for _ in range(2):
        epoch(model.head, opt, [(x,) for x in ()])
        for x in DataLoader(Slow([0.005, 0.005, 0.3, 0.005])):
            opt.zero_grad()
            model.head(x).mean().backward()
            opt.step()


@case
def waits_of_zipped_loaders():
    model, opt = trainer()
    for _ in range(2):
        for x, y in zip(DataLoader(Slow([0.01] * 4)), DataLoader(Slow([0.01] * 4))):
            opt.zero_grad()
            model.head(x + y).mean().backward()
            opt.step()


@case
def prefetching_loader():
    """accelerate's way: one batch ahead."""
    model, opt = trainer()
    ahead = iter(loader(6))
    x = next(ahead)
    for following in [*[None] * 5, "last"]:
        y = next(ahead) if following is None else None
        opt.zero_grad()
        model(x[0]).mean().backward()
        opt.step()
        x = y


@case
def preprocessing_pass():
    for _ in loader():
        time.sleep(0.01)
    epoch(*trainer(), loader())


class Files(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.load("item.pt")


@case
def files_of_a_dataset():
    torch.save(torch.randn(8), "item.pt")
    model, opt = trainer()
    for x in DataLoader(Files(), batch_size=4):
        opt.zero_grad()
        model(x).mean().backward()
        opt.step()


@case
def stateful_loader():
    from torchdata.stateful_dataloader import StatefulDataLoader

    model, opt = trainer()
    for workers in (0, 1):
        data = StatefulDataLoader(TensorDataset(torch.randn(16, 8)), batch_size=4, num_workers=workers)
        epoch(model, opt, data)
        evaluate(model, data)


@case
def distributed():
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["TEST_PORT"], RANK="0", WORLD_SIZE="1")
    mesh = init_device_mesh("cpu", (1,))
    model, opt = trainer(nn.Linear(8, 1))
    epoch(DistributedDataParallel(model), opt, loader())
    sharded = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    assert callable(fully_shard.state)
    fully_shard(sharded, mesh=mesh)
    dist.new_group([0])
    time.sleep(0.01)
    dist.destroy_process_group()


@case
def users_stages_win():
    model, opt = trainer()
    with ett.stage("preproc_creation", part="vocabulary"):
        time.sleep(0.05)
        torch.save(1, "vocabulary.pt")
    epoch(model, opt, loader())
    with ett.stage("evaluation"):
        time.sleep(0.05)
    with ett.stage("report to the boss"):
        evaluate(model, loader())
    epoch(model, opt, loader())

    @ett.stage("publish", part=7)
    def publish(x, *, y=2):
        """Doc."""
        time.sleep(0.02)
        return x, y

    assert publish(1, y=3) == (1, 3)
    assert (publish.__name__, publish.__doc__) == ("publish", "Doc.")


@case
def users_frames():
    model, opt = trainer()
    for number in range(2):
        with ett.stage("epoch", part=number):
            epoch(model, opt, loader(), 0.005)
            torch.save(model.state_dict(), "x.pt")


@case
def steps_of_a_generator():
    """No loader of torch's, no optimizer: the program says what a step is."""

    def batches():
        for number in range(6):
            time.sleep(0.01)
            yield number

    seen = []
    for number, batch in ett.steps(batches(), start=100):
        time.sleep(0.002)
        seen.append((number, batch))
    assert seen == [(100 + n, n) for n in range(6)]


@case
def steps_left_by_break():
    model, opt = trainer()
    for number, (x,) in ett.steps(loader(6)):
        opt.zero_grad()
        model(x).mean().backward()
        opt.step()
        if number == 3:
            break
    for number, _ in ett.steps(loader(6), start=4):
        if number == 6:
            break


@case
def steps_by_hand():
    model, opt = trainer()
    for number in range(40, 45):
        for (x,) in loader(2):
            opt.zero_grad()
            model(x).mean().backward()
            opt.step()
        ett.step(number)


@case
def compilation():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    opt = SGD(model.parameters(), lr=0.1)

    def forward_pass(x):
        return model(x).pow(2).mean()

    compiled = torch.compile(forward_pass, backend="aot_eager", dynamic=False)
    for size in (4, 4, 4, 6):
        opt.zero_grad()
        compiled(torch.randn(size, 8)).backward()
        opt.step()
    torch._dynamo.reset()
    compiled(torch.randn(4, 8))


@case
def compiled_module_first():
    """The first forward is a compiled one: nothing of ours may be traced, guarded on or warned of."""
    warnings.simplefilter("error")
    model = torch.compile(nn.Linear(8, 1), backend="eager", fullgraph=True)
    epoch(model, SGD(model.parameters(), lr=0.1), [(torch.randn(4, 8),)] * 3)


@case
def failed_compilation():
    def broken(graph, inputs):
        time.sleep(0.01)
        raise ValueError("backend on fire")

    try:
        torch.compile(lambda x: x + 1, backend=broken)(torch.ones(1))
    except Exception as error:
        assert "backend on fire" in str(error)
    epoch(*trainer(), loader())


def run(name):
    folder = ROOT / "work" / name
    folder.mkdir(parents=True)
    os.chdir(folder)
    torch.set_num_threads(1)
    CASES[name]()
    from ettrain.record.recorder import recorder

    return {"steps": recorder.steps, "depth": recorder.beat[16], "batches": recorder.rule.batches, "wait_ns": recorder.wait_ns, "lost_ns": recorder.lost_ns}


results = {}
for name in sys.argv[1:] or list(CASES):
    results[name] = in_child(lambda name=name: run(name), job_dir=ROOT / "jobs" / name)
tell(results)

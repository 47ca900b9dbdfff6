"""A plain training program that knows nothing of ettrain and keeps a diary of its own: the independent truth of the tests.

Every process appends one JSON line per instant (monotonic ns) to a file of its own in `--diary`, each by a single write.
Steps take a known time (a sleep in the forward), so that they dominate the noise. A run that was stopped goes on from its newest
checkpoint, or from the one that the file `resume_from` names. A `--fault WHERE:ACTION[:RANK]` happens once in a job's life.
"""

import time

STARTED = time.monotonic_ns()

import argparse  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import random  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


class Diary:
    """One line per instant; `launch` tells which start of the job's processes this one belongs to."""

    def __init__(self, folder):
        Path(folder).mkdir(parents=True, exist_ok=True)
        path = os.path.join(folder, f"{RANK}-{os.getpid()}-{STARTED}.jsonl")
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
        told = [os.environ.get(name) for name in ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")]
        launch = "-".join(told) if all(told) else f"pid-{os.getpid()}"
        self.write("start", STARTED, launch=launch, pid=os.getpid(), world=WORLD)

    def write(self, what, t=None, **more):
        line = json.dumps({"what": what, "t": t or time.monotonic_ns(), "rank": RANK, **more})
        os.write(self.fd, line.encode() + b"\n")


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--diary", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--step-s", type=float, default=0.05)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--save-every", type=int, default=12)
    parser.add_argument("--eval-every", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--stagger-s", type=float, default=0.0, help="each second batch takes so long to load, by turns on the ranks")
    parser.add_argument("--fault", action="append", default=[])
    parser.add_argument("--trap-term", action="store_true")
    return parser.parse_args()


class Faults:
    """What is to go wrong, each once: whoever makes the marker file first does it."""

    def __init__(self, texts, out, diary):
        self.out, self.diary = out, diary
        self.wanted = []
        for text in texts:
            where, action, rank = (*text.split(":"), "0")[:3]
            if int(rank) == RANK:
                self.wanted.append((where, action, os.path.join(out, "fault-" + text.replace("=", "-").replace(":", "-"))))

    def here(self, where):
        for wanted, action, marker in self.wanted:
            if wanted == where:
                self.do(action, marker)

    def do(self, action, marker):
        try:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        name, _, value = action.partition("=")
        self.diary.write("fault", action=name)
        if name == "raise":
            raise RuntimeError("the test wants it")
        if name == "exit":
            os._exit(int(value))
        if name == "signal":
            os.kill(os.getpid(), int(value))
        time.sleep(float(value or 3600))
        self.diary.write("healed")


def main():
    args = parse()
    diary = Diary(args.diary)
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    faults = Faults(args.fault, args.out, diary)
    told = []
    if args.trap_term:
        signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    faults.here("start")

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.utils.data import DataLoader, Dataset

    diary.write("imported")
    faults.here("imported")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if WORLD > 1:
        dist.init_process_group("gloo")
    diary.write("initialized")
    faults.here("init")

    class Rows(Dataset):
        def __len__(self):
            return args.steps * args.batch * WORLD

        def __getitem__(self, index):
            if args.stagger_s and (index // args.batch + index // (args.batch * WORLD)) % 2 == 0:
                time.sleep(args.stagger_s / args.batch)
            chance = random.Random(index)
            return [chance.gauss(0, 1) for _ in range(64)], index

    class Slow(nn.Module):
        """Takes `--step-s` per training step, like a model with something to compute."""

        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
            self.step = 0

        def forward(self, x):
            if self.training:
                time.sleep(args.step_s)
                faults.here(f"step={self.step}")
            return self.net(x).squeeze(1)

    inner = Slow()
    optimizer = torch.optim.SGD(inner.parameters(), lr=1e-4, momentum=0.9)
    model = nn.parallel.DistributedDataParallel(inner) if WORLD > 1 else inner
    diary.write("built")

    first = 0
    wish = out / "resume_from"
    if wish.exists():
        first = int(wish.read_text())
    else:
        first = max((int(path.stem.split("-")[1]) for path in out.glob("ckpt-*.pt")), default=0)
    if first:
        diary.write("load_begin", step=first)
        state = torch.load(out / f"ckpt-{first}.pt")
        inner.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        diary.write("load_end", step=first)

    def save(step):
        diary.write("save_begin", step=step)
        partial = out / f"partial-{os.getpid()}"
        torch.save({"model": inner.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, partial)
        os.replace(partial, out / f"ckpt-{step}.pt")
        diary.write("save_end", step=step)

    def evaluate():
        diary.write("eval_begin")
        model.eval()
        with torch.no_grad():
            for begin in range(8):
                inner(torch.tensor([rows[begin][0]]))
            time.sleep(0.3)
        model.train()
        diary.write("eval_end")

    def must_stop():
        if not args.trap_term:
            return False
        flag = torch.tensor([len(told)])
        if WORLD > 1:
            dist.all_reduce(flag)
        return bool(flag.item())

    rows = Rows()
    each = args.batch * WORLD
    batches = [range(step * each + RANK * args.batch, step * each + (RANK + 1) * args.batch) for step in range(first, args.steps)]
    # torchrun sends SIGTERM to a rank's whole group; torch's data workers die of it and take the rank with them.
    deaf = (lambda worker: signal.signal(signal.SIGTERM, signal.SIG_IGN)) if args.trap_term and WORLD > 1 else None
    # Rows travel as plain lists: a tensor from a worker costs a round trip to it, which a busy machine makes long.
    loader = DataLoader(rows, batch_sampler=batches, num_workers=args.workers, worker_init_fn=deaf, collate_fn=list)
    done = first
    batches_left = iter(loader)
    while True:
        diary.write("wait_begin")
        batch = next(batches_left, None)
        if batch is None:
            break
        diary.write("step_begin", step=done)
        x = torch.tensor([row for row, _ in batch])
        inner.step = done
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), x.sum(1))
        loss.backward()
        optimizer.step()
        diary.write("step_end", step=done, ids=[index for _, index in batch])
        done += 1
        if must_stop():
            if RANK == 0:
                save(done)
            diary.write("preempted")
            break
        if args.save_every and done % args.save_every == 0 and RANK == 0:
            save(done)
        if args.eval_every and done % args.eval_every == 0:
            evaluate()
    del batches_left, loader
    if WORLD > 1:
        dist.destroy_process_group()
    diary.write("end")


if __name__ == "__main__":
    sys.exit(main())

"""Train a DLRM click model on Criteo-format data, alone or under torchrun (DDP over gloo, CPU).

A run that was stopped in any way, kill -9 included, goes on from its last checkpoint when it is
started again with the same arguments: at the very next batch, without reading the earlier ones.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Subset

from data import Batch, CriteoRows, ResumableSampler, Row, SlowService, collate
from model import DLRM


@dataclass
class Progress:
    """How far training has come."""

    step: int = 0  # optimizer steps since the very beginning
    epoch: int = 0  # current epoch, from 0
    position: int = 0  # samples of this epoch consumed so far, all ranks together


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, default=Path("criteo.tsv"), help="Criteo TSV file (make_data.py makes one)")
    add("--out", type=Path, default=Path("dlrm-out"), help="folder of checkpoint.pt")
    add("--resume", choices=["auto", "never"], default="auto", help="auto: go on from checkpoint.pt if any")
    add("--epochs", type=int, default=1, help="passes over the training rows")
    add("--steps", type=int, default=0, help="stop after this many steps in all (0: no limit)")
    add("--batch-size", type=int, default=256, help="samples per step and rank")
    add("--workers", type=int, default=1, help="data loading processes per rank")
    add("--seed", type=int, default=0, help="for the initial weights and the shuffling")
    add("--table-size", type=int, default=10_000, help="rows of each of the 26 embedding tables")
    add("--dim", type=int, default=16, help="embedding width")
    add("--bottom-mlp", type=int, nargs="+", default=[256, 64], help="hidden widths before the interaction")
    add("--top-mlp", type=int, nargs="+", default=[768, 512, 256], help="hidden widths after it")
    add("--lr", type=float, default=1e-3, help="AdamW learning rate, for the MLPs")
    add("--embedding-lr", type=float, default=0.02, help="Adagrad learning rate, for the tables")
    add("--compile", action="store_true", help="torch.compile the dense part of the model")
    add("--first-batch-delay", type=float, default=0.0, help="a slow data service: its first row comes so late, seconds")
    add("--log-every", type=int, default=10, help="steps between log lines, at least 1")
    add("--save-every", type=int, default=100, help="steps between checkpoints (0: at the end only)")
    add("--eval-every", type=int, default=0, help="steps between evaluations (0: at the end only)")
    add("--eval-rows", type=int, default=10_000, help="rows at the end of the file held out for evaluation")
    add("--sample-log", type=Path, help="debugging: each rank appends the rows of each step to a file here")
    args = parser.parse_args()
    if not args.data.is_file():
        parser.error(f"{args.data}: no such file (make_data.py makes a synthetic one)")
    return args


def open_sample_log(folder: Path, rank: int) -> FileIO:
    """Open this rank's log of sample ids for unbuffered appending, without a line torn by a kill."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"rank-{rank}.txt"
    path.touch()
    os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
    return path.open("ab", buffering=0)


class Trainer:
    """Model, optimizers, data and progress of one rank."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.rank = int(os.environ.get("RANK", "0"))
        self.world_size = int(os.environ.get("WORLD_SIZE", "1"))
        self.distributed = self.world_size > 1
        self.progress = Progress()
        self.saved_step = -1
        self.evaluated_step = -1
        self.checkpoint_path = args.out / "checkpoint.pt"
        args.out.mkdir(parents=True, exist_ok=True)
        self.sample_log = open_sample_log(args.sample_log, self.rank) if args.sample_log else None

    def prepare(self) -> None:
        """All that comes before the first step."""
        self.join()
        self.load_data()
        self.create_model()
        self.create_optimizers()
        self.restore()

    def join(self) -> None:
        """Meet the other ranks, if there are any."""
        if self.distributed:
            dist.init_process_group("gloo")

    def load_data(self) -> None:
        """Index the file and split it: the tail is held out, the rest is for training."""
        args = self.args
        rows = CriteoRows(args.data, args.table_size)
        self.train_rows = len(rows) - args.eval_rows
        if self.train_rows < args.batch_size * self.world_size:
            raise SystemExit(f"{args.data}: {len(rows)} rows are too few for --eval-rows and one batch")
        train_set = Subset(rows, range(self.train_rows))
        self.sampler = ResumableSampler(train_set, self.world_size, self.rank, args.seed)
        self.service = SlowService(train_set, args.first_batch_delay)
        self.train_loader: Iterable[Batch] = self._loader(self.service, self.sampler)
        held_out = range(self.train_rows + self.rank, len(rows), self.world_size)
        self.eval_loader = self._loader(Subset(rows, held_out), None)
        self.log(f"data {args.data}: {self.train_rows} training rows, {args.eval_rows} held out")

    def _loader(self, dataset: Dataset[Row], sampler: ResumableSampler | None) -> DataLoader[Row]:
        """Batches of `dataset`, parsed in worker processes."""
        args = self.args
        return DataLoader(
            dataset, args.batch_size, sampler=sampler, num_workers=args.workers, collate_fn=collate
        )

    def create_model(self) -> None:
        """Create the model, the same on every rank."""
        args = self.args
        torch.manual_seed(args.seed)
        self.model = DLRM(args.table_size, args.dim, args.bottom_mlp, args.top_mlp)
        if args.compile:
            self.model.net.compile()

    def create_optimizers(self) -> None:
        """Make the model parallel; create one optimizer each for its dense and sparse part."""
        args = self.args
        self.forward: nn.Module = DistributedDataParallel(self.model) if self.distributed else self.model
        self.optimizers = {
            "net": torch.optim.AdamW(self.model.net.parameters(), lr=args.lr),
            "tables": torch.optim.Adagrad(self.model.tables.parameters(), lr=args.embedding_lr),
        }

    def log(self, message: str) -> None:
        """Print a line from rank 0."""
        if self.rank == 0:
            print(message, flush=True)

    def sum_over_ranks(self, *values: float) -> list[float]:
        """Add up each value over all ranks; every rank must call it."""
        total = torch.tensor(values, dtype=torch.float64)
        if self.distributed:
            dist.all_reduce(total)
        return total.tolist()

    def restore(self) -> None:
        """Load the checkpoint, if one is to be resumed; the shuffling must be the one that it was made under."""
        if self.args.resume == "never" or not self.checkpoint_path.exists():
            return
        state = torch.load(self.checkpoint_path, map_location="cpu", weights_only=True)
        if state["shuffling"] != self._shuffling():
            raise SystemExit(
                f"{self.checkpoint_path} belongs to other data or another seed ({state['shuffling']}, "
                f"now {self._shuffling()}); give another --out or --resume never"
            )
        self.model.load_state_dict(state["model"])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        self.progress = Progress(**state["progress"])
        self.saved_step = self.progress.step
        at = self.progress
        self.log(f"resumed at step {at.step} (epoch {at.epoch}, {at.position} samples into it)")

    def save(self) -> None:
        """Write the checkpoint from rank 0, so that the file under its final name is always whole.

        The barrier lets every rank finish and log this step before a checkpoint makes it final.
        """
        if self.distributed:
            dist.barrier()
        self.saved_step = self.progress.step
        if self.rank != 0:
            return
        state = {
            "model": self.model.state_dict(),
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            "progress": asdict(self.progress),
            "shuffling": self._shuffling(),
        }
        temporary = self.checkpoint_path.with_suffix(".pt.tmp")
        with temporary.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.checkpoint_path)

    def _shuffling(self) -> dict[str, int]:
        """What the order of samples depends on, besides the epoch."""
        return {"training rows": self.train_rows, "seed": self.args.seed}

    def update(self, batch: Batch) -> Tensor:
        """Forward, backward, both optimizers; return this rank's loss."""
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        loss = binary_cross_entropy_with_logits(self.forward(batch.dense, batch.categories), batch.labels)
        loss.backward()
        for optimizer in self.optimizers.values():
            optimizer.step()
        return loss.detach()

    def train_step(self, batch: Batch) -> Tensor:
        """Do one step, take note of it, and return this rank's loss."""
        loss = self.update(batch)
        self.progress.step += 1
        self.progress.position += len(batch.rows) * self.world_size
        if self.sample_log:
            ids = " ".join(map(str, batch.rows.tolist()))
            self.sample_log.write(f"{self.progress.step} {ids}\n".encode())
        return loss

    @torch.no_grad()
    def evaluate(self) -> None:
        """Print logloss (nats per sample) and accuracy (at probability 0.5) on the held-out rows."""
        self.model.eval()
        loss_sum, correct, count = 0.0, 0.0, 0.0
        for batch in self.eval_loader:
            logits = self.model(batch.dense, batch.categories)
            loss_sum += binary_cross_entropy_with_logits(logits, batch.labels, reduction="sum").item()
            correct += ((logits > 0) == (batch.labels > 0.5)).sum().item()
            count += len(batch.rows)
        self.model.train()
        loss_sum, correct, count = self.sum_over_ranks(loss_sum, correct, count)
        self.evaluated_step = self.progress.step
        if count:
            logloss, accuracy = loss_sum / count, correct / count
            self.log(f"eval step {self.evaluated_step} logloss {logloss:.4f} accuracy {accuracy:.4f}")

    def finished(self) -> bool:
        """Whether the limit of --steps is reached."""
        return 0 < self.args.steps <= self.progress.step

    def train_epoch(self) -> None:
        """Train to the end of the current epoch or the limit of steps, whichever comes first."""
        args, progress = self.args, self.progress
        self.sampler.set_position(progress.epoch, progress.position)
        loss_sum, samples, steps, since = 0.0, 0, 0, time.perf_counter()
        for batch in self.train_loader:
            loss_sum += self.train_step(batch).item()
            samples += len(batch.rows) * self.world_size
            steps += 1
            if progress.step % args.log_every == 0:
                speed = samples / (time.perf_counter() - since)
                loss = self.sum_over_ranks(loss_sum)[0] / (steps * self.world_size)
                self.log(f"step {progress.step} epoch {progress.epoch} loss {loss:.4f} samples/s {speed:.0f}")
                loss_sum, samples, steps, since = 0.0, 0, 0, time.perf_counter()
            if args.save_every and progress.step % args.save_every == 0:
                self.save()
            if args.eval_every and progress.step % args.eval_every == 0:
                self.evaluate()
            if self.finished():
                return
        progress.epoch += 1
        progress.position = 0
        self.service.delay_s = 0.0  # it is under way now

    def fit(self) -> None:
        """Train to the end, then evaluate and save."""
        while self.progress.epoch < self.args.epochs and not self.finished():
            self.train_epoch()
        if self.saved_step != self.progress.step:
            self.save()
        if self.evaluated_step != self.progress.step:
            self.evaluate()
        self.log(f"finished at step {self.progress.step}")


def main() -> None:
    """Run as one of torchrun's ranks, or alone."""
    args = parse_args()
    torch.sparse.check_sparse_tensor_invariants.disable()  # the default, said aloud: Adagrad warns otherwise
    trainer = Trainer(args)
    trainer.prepare()
    trainer.fit()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Train a small language model on a text file, alone or under torchrun (DDP over gloo, CPU).

A run that was stopped in any way, kill -9 included, goes on from its last checkpoint when it is
started again with the same arguments: at the very next batch, without reading the earlier ones.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Subset

from data import IGNORED, Batch, ResumableSampler, TextLines, load
from model import LanguageModel


@dataclass
class Progress:
    """How far training has come."""

    step: int = 0  # optimizer steps since the very beginning
    epoch: int = 0  # current epoch, from 0
    position: int = 0  # documents of this epoch consumed so far, all ranks together


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, default=Path("corpus.txt"), help="text, one document a line (make_data.py makes one)")
    add("--out", type=Path, default=Path("lm-out"), help="folder of checkpoint.pt")
    add("--resume", choices=["auto", "never"], default="auto", help="auto: go on from checkpoint.pt if any")
    add("--epochs", type=int, default=1, help="passes over the training documents")
    add("--steps", type=int, default=0, help="stop after this many steps in all (0: no limit)")
    add("--batch-size", type=int, default=32, help="documents per step and rank")
    add("--workers", type=int, default=1, help="data loading processes per rank")
    add("--seed", type=int, default=0, help="for the initial weights and the shuffling")
    add("--context", type=int, default=256, help="longest document, in bytes; longer ones are cut")
    add("--dim", type=int, default=64, help="width of the model")
    add("--layers", type=int, default=2, help="transformer blocks")
    add("--heads", type=int, default=4, help="attention heads per block")
    add("--lr", type=float, default=2e-3, help="AdamW learning rate")
    add("--compile", action="store_true", help="torch.compile the model")
    add("--log-every", type=int, default=10, help="steps between log lines, at least 1")
    add("--save-every", type=int, default=100, help="steps between checkpoints (0: at the end only)")
    add("--eval-documents", type=int, default=500, help="documents at the end of the file held out for evaluation")
    args = parser.parse_args()
    if not args.data.is_file():
        parser.error(f"{args.data}: no such file (make_data.py makes a synthetic one)")
    if args.dim % args.heads:
        parser.error("--dim must be a multiple of --heads")
    return args


class Trainer:
    """Model, optimizer, data and progress of one rank."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.distributed = dist.is_initialized()
        self.rank = dist.get_rank() if self.distributed else 0
        self.world_size = dist.get_world_size() if self.distributed else 1
        self.progress = Progress()
        self.saved_step = -1
        self.checkpoint_path = args.out / "checkpoint.pt"
        self._load_data()
        self._build_model()
        args.out.mkdir(parents=True, exist_ok=True)
        if args.resume == "auto" and self.checkpoint_path.exists():
            self.restore()

    def _load_data(self) -> None:
        """Index the file and split it: the tail is held out, the rest is for training."""
        args = self.args
        lines = TextLines(args.data, args.context)
        self.train_documents = len(lines) - args.eval_documents
        if self.train_documents < self.world_size:
            raise SystemExit(f"{args.data}: {len(lines)} documents are too few for --eval-documents {args.eval_documents}")
        train_set = Subset(lines, range(self.train_documents))
        self.sampler = ResumableSampler(train_set, self.world_size, self.rank, args.seed)
        self.train_loader = load(train_set, args.batch_size, args.workers, self.sampler)
        held_out = Subset(lines, range(self.train_documents + self.rank, len(lines), self.world_size))
        self.eval_loader = load(held_out, args.batch_size, args.workers, None)
        self.log(f"data {args.data}: {self.train_documents} training documents, {args.eval_documents} held out")

    def _build_model(self) -> None:
        """Create the model (the same on every rank) and its optimizer."""
        args = self.args
        torch.manual_seed(args.seed)
        self.model = LanguageModel(args.context, args.dim, args.layers, args.heads)
        if args.compile:
            self.model.compile()
        self.forward: nn.Module = DistributedDataParallel(self.model) if self.distributed else self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr)

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
        """Load the checkpoint; the shuffling must be the one that it was made under."""
        state = torch.load(self.checkpoint_path, map_location="cpu", weights_only=True)
        if state["shuffling"] != self._shuffling():
            raise SystemExit(
                f"{self.checkpoint_path} belongs to other data or another seed ({state['shuffling']}, "
                f"now {self._shuffling()}); give another --out or --resume never"
            )
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.progress = Progress(**state["progress"])
        self.saved_step = self.progress.step
        at = self.progress
        self.log(f"resumed at step {at.step} (epoch {at.epoch}, {at.position} documents into it)")

    def save(self) -> None:
        """Write the checkpoint from rank 0, so that the file under its final name is always whole."""
        if self.distributed:
            dist.barrier()
        self.saved_step = self.progress.step
        if self.rank != 0:
            return
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
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
        """What the order of documents depends on, besides the epoch."""
        return {"training documents": self.train_documents, "seed": self.args.seed}

    def train_step(self, batch: Batch) -> Tensor:
        """Do one optimizer step and return this rank's loss."""
        self.optimizer.zero_grad()
        loss = self.forward(batch.tokens, batch.targets)
        loss.backward()
        self.optimizer.step()
        self.progress.step += 1
        self.progress.position += len(batch.rows) * self.world_size
        return loss.detach()

    @torch.no_grad()
    def evaluate(self) -> None:
        """Print the loss (nats per byte) on the held-out documents."""
        self.model.eval()
        loss_sum, count = 0.0, 0.0
        for batch in self.eval_loader:
            size = int((batch.targets != IGNORED).sum())
            loss_sum += self.model(batch.tokens, batch.targets).item() * size
            count += size
        self.model.train()
        loss_sum, count = self.sum_over_ranks(loss_sum, count)
        if count:
            self.log(f"eval step {self.progress.step} loss {loss_sum / count:.4f}")

    def finished(self) -> bool:
        """Whether the limit of --steps is reached."""
        return 0 < self.args.steps <= self.progress.step

    def train_epoch(self) -> None:
        """Train to the end of the current epoch or the limit of steps, whichever comes first."""
        args, progress = self.args, self.progress
        self.sampler.set_position(progress.epoch, progress.position)
        loss_sum, tokens, steps, since = 0.0, 0, 0, time.perf_counter()
        for batch in self.train_loader:
            loss_sum += self.train_step(batch).item()
            tokens += batch.tokens.numel() * self.world_size
            steps += 1
            if progress.step % args.log_every == 0:
                speed = tokens / (time.perf_counter() - since)
                loss = self.sum_over_ranks(loss_sum)[0] / (steps * self.world_size)
                self.log(f"step {progress.step} epoch {progress.epoch} loss {loss:.4f} tokens/s {speed:.0f}")
                loss_sum, tokens, steps, since = 0.0, 0, 0, time.perf_counter()
            if args.save_every and progress.step % args.save_every == 0:
                self.save()
            if self.finished():
                return
        progress.epoch += 1
        progress.position = 0

    def fit(self) -> None:
        """Train to the end, then save and evaluate."""
        while self.progress.epoch < self.args.epochs and not self.finished():
            self.train_epoch()
        if self.saved_step != self.progress.step:
            self.save()
        if self.args.eval_documents:
            self.evaluate()
        self.log(f"finished at step {self.progress.step}")


def main() -> None:
    """Run as one of torchrun's ranks, or alone."""
    args = parse_args()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo")
    Trainer(args).fit()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

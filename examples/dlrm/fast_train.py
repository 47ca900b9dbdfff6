"""Train exactly as train.py does, started faster: stages overlap, and the model is compiled while the data service warms up.

The same arguments, losses and checkpoints. Needs ettrain; `train.py` knows nothing of it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

import ettrain as ett
from data import NUM_DENSE, NUM_TABLES, Batch, Row, collate
from train import Trainer, parse_args


def start(trainer: Trainer) -> None:
    """Do what `Trainer.prepare` does; also start the loader and compile the step."""
    args = trainer.args
    stages = ett.Startup()

    @stages.stage(collective=True, bill="process_group_init")
    def process_group() -> None:
        trainer.join()

    @stages.stage(bill="preproc_creation")
    def data() -> None:
        trainer.load_data()

    @stages.stage(rng=True, bill="train_module_creation")
    def model() -> None:
        trainer.create_model()

    @stages.stage(collective=True, bill="train_module_creation")
    def optimizers(model: None, process_group: None) -> None:
        trainer.create_optimizers()

    @stages.stage(bill="checkpoint_load")
    def checkpoint(optimizers: None, data: None) -> None:
        trainer.restore()

    @stages.stage(main=True, rng=True, bill="get_first_batch_data")
    def batches(checkpoint: None) -> Any:
        """Forks the workers: nothing else runs now, since nothing else is left to do but what waits for this."""
        trainer.sampler.set_position(trainer.progress.epoch, trainer.progress.position)
        return ett.first_batch(trainer.train_loader, make=lambda: example_batch(args.batch_size))

    @stages.stage(collective=True, rng=True, bill="compile")
    def compiled(batches: Any) -> None:
        if args.compile:
            ett.warm_compile(trainer.update, batches.compile_batch, model=trainer.forward)

    trainer.train_loader = stages.run().batches


def example_batch(size: int) -> Batch:
    """A batch of the shape that the loader delivers, without asking the data service."""
    return collate([Row(0.0, [0] * NUM_DENSE, [1] * NUM_TABLES, 0)] * size)


def main() -> None:
    """Run as one of torchrun's ranks, or alone."""
    args = parse_args()
    torch.sparse.check_sparse_tensor_invariants.disable()  # the default, said aloud: Adagrad warns otherwise
    trainer = Trainer(args)
    start(trainer)
    trainer.fit()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

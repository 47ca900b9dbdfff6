"""Train as train.py does, and hand the last checkpoint to a process without devices, which makes the model that is served.

The training ends at once; `ett publish wait FOLDER` waits for the model at FOLDER/dlrm/current.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import ettrain as ett
from model import DLRM
from train import Trainer, parse_args


def publish_arguments() -> argparse.Namespace:
    """Take the arguments that train.py does not know from the command line."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--publish", type=Path, default=Path("dlrm-models"), help="folder of published models")
    parser.add_argument("--export", choices=["export", "aoti", "int8"], default="export", help="what to make")
    found, sys.argv[1:] = parser.parse_known_args()
    return found


def main() -> None:
    """Run as one of torchrun's ranks, or alone."""
    wanted, args = publish_arguments(), parse_args()
    torch.sparse.check_sparse_tensor_invariants.disable()
    trainer = Trainer(args)
    trainer.prepare()
    trainer.fit()
    batch = next(iter(trainer.eval_loader))
    ett.publish(
        trainer.checkpoint_path,
        to=wanted.publish,
        name="dlrm",
        model=DLRM,
        arguments={"table_size": args.table_size, "dim": args.dim, "bottom": args.bottom_mlp, "top": args.top_mlp},
        batch=(batch.dense, batch.categories),
        reference=trainer.model,
        export=wanted.export,
        step=trainer.progress.step,
    )
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

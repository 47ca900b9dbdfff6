"""Checkpoints of Lightning's `Trainer` that do not block, and the way back into its loops.

Lightning's loops do not know where a loader stands in the middle of an epoch, so the loader is followed: `Checkpoint.loader` goes to
`trainer.fit` in its place, and saves are made where the loop asks it for the next batch, when all of the batch before is done.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from torch.utils.data import DistributedSampler

from ettrain.boost.checkpoint.checkpointer import Checkpointer
from ettrain.boost.feed import Feed, follow
from ettrain.errors import UsageError

if TYPE_CHECKING:
    from lightning.pytorch import Callback
else:
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback


class Checkpoint(Callback):  # type: ignore[misc]
    """Saves a Lightning training in the background, and goes on from it exactly.

        checkpoint = Checkpoint("checkpoints", loader=train_loader)
        trainer = Trainer(..., callbacks=[checkpoint], enable_checkpointing=False)
        trainer.fit(model, checkpoint.loader, val_loader)

    A checkpoint holds the module, the optimizers, the schedulers, the precision plugin's state (the scaler), the loops' progress, the
    callbacks' states, the place in the data and the generators of every rank.

    Args:
        folder: where the checkpoints go; one job's own.
        loader: the training's loader; on several ranks with a DistributedSampler, since Lightning puts none into a loader that is followed.
        every: "auto" = by what a save costs and how often jobs fail; a number of steps; or a time such as "300s".
        keep: checkpoints that stay.
    """

    def __init__(self, folder: str | os.PathLike[str], *, loader: Iterable[Any], every: int | str = "auto", keep: int = 2) -> None:
        super().__init__()
        self._folder, self._every, self._keep = folder, every, keep
        self._plain = loader
        self.feed: Feed[Any] | None = None
        """The loader followed, while a fit is under way."""
        self._trainer: Any = None
        self._ckpt: Checkpointer | None = None
        self._told = 0
        self.loader = _Loader(loader, self)
        """Give this one to `trainer.fit`."""

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Everything is built, nothing has run: go on from the newest checkpoint.

        Raises:
            UsageError: what cannot be saved or gone on from like this: what, and what to do.
        """
        if trainer.ckpt_path is not None:
            raise UsageError("Checkpoint: trainer.fit(ckpt_path=...) and this callback would both restore. Leave ckpt_path out.")
        if not pl_module.automatic_optimization:
            raise UsageError(
                "Checkpoint: with automatic_optimization=False the end of a step is not known. Use ett.Checkpointer in training_step."
            )
        if len(trainer.optimizers) > 1 or trainer.limit_train_batches not in (1.0, None):
            raise UsageError("Checkpoint: needs one optimizer, and whole epochs (no limit_train_batches).")
        if trainer.world_size > 1 and not isinstance(getattr(self._plain, "sampler", None), DistributedSampler):
            raise UsageError("Checkpoint(loader=...): on several ranks the loader needs a DistributedSampler. Give it one.")
        self._trainer = trainer
        self.feed = follow(self._plain, rank=trainer.global_rank, world=trainer.world_size)
        self._ckpt = Checkpointer(
            self._folder,
            model=trainer.strategy.model,
            optimizer=trainer.optimizers,
            loader=self.feed,
            every=self._every,
            keep=self._keep,
            lightning=_TrainerState(trainer, self),
            **{f"scheduler{index}": config.scheduler for index, config in enumerate(trainer.lr_scheduler_configs)},
        )
        self._told = self._ckpt.restore()

    def between(self) -> None:
        """The loop asks for the next batch: save if a step was done and it is due."""
        if self._ckpt is not None and self._trainer.global_step != self._told:
            self._told = self._trainer.global_step
            self._ckpt.stepped(self._told)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Save the end, and wait for it."""
        if self._ckpt is not None:
            self._ckpt.stepped(trainer.global_step)
            self._ckpt.close()
            self._ckpt = self.feed = None

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Finish the save that is under way."""
        ckpt, self._ckpt = self._ckpt, None
        if ckpt is not None:
            ckpt.__exit__(type(exception), exception, None)


class _Loader:
    """The followed loader, as Lightning sees it: of full length, and each pass begins where the data stand."""

    def __init__(self, loader: Iterable[Any], checkpoint: Checkpoint) -> None:
        self._loader, self._checkpoint = loader, checkpoint
        self._running: Iterator[Any] | None = None
        self.sampler = getattr(loader, "sampler", None)
        """Lightning tells it the epoch."""

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        """Lightning makes more iterators than it uses: a pass begins with its first batch."""
        feed = self._checkpoint.feed
        if feed is None:
            raise UsageError("checkpoint.loader is trainer.fit's only. Give other loops the loader itself.")
        self._finish()
        self._checkpoint.between()
        self._running = running = iter(feed)
        for batch in running:
            yield batch
            self._checkpoint.between()
        self._running = None

    def _finish(self) -> None:
        """End the pass before: Lightning counts the batches and does not ask for the end."""
        before, self._running = self._running, None
        if before is not None and next(before, None) is not None:
            raise UsageError(
                "Checkpoint: the epoch was left before its end, so its place in the data is lost. Leave limit_train_batches out."
            )


class _TrainerState:
    """Progress of the loops, states of callbacks and of the precision plugin, as plain values."""

    def __init__(self, trainer: Any, checkpoint: Checkpoint) -> None:
        self._trainer, self._checkpoint = trainer, checkpoint

    def state_dict(self) -> dict[str, Any]:
        trainer = self._trainer
        callbacks = {one.state_key: one.state_dict() for one in trainer.callbacks if one is not self._checkpoint}
        return {
            "loops": json.dumps(trainer.fit_loop.state_dict()),
            "callbacks": {name: state for name, state in callbacks.items() if state},
            "precision": trainer.precision_plugin.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        trainer = self._trainer
        trainer.fit_loop.load_state_dict(json.loads(state["loops"]))
        for one in trainer.callbacks:
            if one.state_key in state.get("callbacks", {}):
                one.load_state_dict(state["callbacks"][one.state_key])
        if state.get("precision"):
            trainer.precision_plugin.load_state_dict(state["precision"])

"""Checkpoints of transformers' `Trainer` that do not block, and the way back into its loop.

The `Trainer` resumes from a folder of its own format, in a fixed order of steps. `Checkpoint.resume` hands it a folder with its
`trainer_state.json` from the newest checkpoint that verifies, and stands in for the steps that would read the other files.
Not here: the place in the data, which the `Trainer` finds again by itself, from its seed and its count of steps.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import tempfile
from typing import Any, Final

from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from ettrain.boost import generators
from ettrain.boost.checkpoint.checkpointer import Checkpointer
from ettrain.boost.frameworks.newest import newest
from ettrain.errors import UsageError

_STATE: Final = "trainer_state.json"
_STEPS: Final = ("_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_scaler", "_load_rng_state")
"""What the `Trainer` reads from a checkpoint's folder besides its own state; its subclasses override them as well."""


class Checkpoint(TrainerCallback):  # type: ignore[misc]
    """Saves a `Trainer`'s training in the background, and goes on from it exactly.

        checkpoint = Checkpoint("checkpoints")
        trainer = Trainer(..., args=TrainingArguments(..., save_strategy="no"), callbacks=[checkpoint])
        trainer.train(resume_from_checkpoint=checkpoint.resume(trainer))

    A checkpoint holds the model, the optimizer, the scheduler, the scaler, the generators of every rank, the `Trainer`'s own state
    and that of its callbacks.

    Args:
        folder: where the checkpoints go; one job's own.
        every: "auto" = by what a save costs and how often jobs fail; a number of steps; or a time such as "300s".
        keep: checkpoints that stay.
    """

    def __init__(self, folder: str | os.PathLike[str], *, every: int | str = "auto", keep: int = 2) -> None:
        self._folder, self._every, self._keep = folder, every, keep
        self._trainer: Any = None
        self._ckpt: Checkpointer | None = None
        self._name = self._handed = ""
        self._random: Any = None
        self._told = 0

    def resume(self, trainer: Any) -> str | None:
        """What to give to `trainer.train(resume_from_checkpoint=...)`: None where there is no checkpoint. All ranks must call it.

        Raises:
            UsageError: this `Trainer` cannot go on from checkpoints that are not its own: what, and what to do.
        """
        missing = [name for name in _STEPS if not callable(getattr(trainer, name, None))]
        if missing:
            raise UsageError(
                f"Checkpoint.resume: this transformers' Trainer has no {missing[0]}. Use its own checkpoints with this version."
            )
        if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
            raise UsageError("Checkpoint.resume: under DeepSpeed or FSDP the Trainer builds the model from its own checkpoints. Use those.")
        if trainer.args.ignore_data_skip:
            raise UsageError("Checkpoint.resume: with ignore_data_skip=True samples would be trained twice. Leave it out.")
        self._trainer = trainer
        found = newest(self._folder, "trainer.json")
        if not found.name:
            return None
        if found.world != trainer.args.world_size:
            raise UsageError(
                f"Checkpoint.resume: {found.name} is of {found.world} processes, and {trainer.args.world_size} go on: the Trainer counts its data in "
                "steps of all processes, so samples would be lost or trained twice. Go on with as many, or use ett.Checkpointer in a loop of your own."
            )
        self._name = found.name
        self._handed = tempfile.mkdtemp(prefix="ettrain-")
        with open(os.path.join(self._handed, _STATE), "w", encoding="utf-8") as file:
            file.write(found.text)
        trainer._load_from_checkpoint = trainer._load_scaler = lambda *args, **kwargs: None
        trainer._load_optimizer_and_scheduler = lambda *args, **kwargs: self._restore(trainer)
        trainer._load_rng_state = lambda *args, **kwargs: generators.put_back(self._random)
        return self._handed

    def _made(self, trainer: Any) -> Checkpointer:
        if self._ckpt is None:
            more = {"trainer": _TrainerState(trainer), "scheduler": trainer.lr_scheduler}
            if getattr(trainer.accelerator, "scaler", None) is not None:
                more["scaler"] = trainer.accelerator.scaler
            optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
            self._ckpt = Checkpointer(
                self._folder, model=trainer.model_wrapped, optimizer=optimizer, every=self._every, keep=self._keep, **more
            )
        return self._ckpt

    def _restore(self, trainer: Any) -> None:
        self._told = self._made(trainer).restore(self._name)
        self._random = generators.take()
        shutil.rmtree(self._handed, ignore_errors=True)

    # ---- the Trainer's events

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin.

        Raises:
            UsageError: `resume` was not called.
        """
        if self._trainer is None:
            raise UsageError(
                "Checkpoint: call trainer.train(resume_from_checkpoint=checkpoint.resume(trainer)), so that it finds its way back."
            )
        if self._ckpt is None:
            self._made(self._trainer).restore()  # there is none, which is said

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Between two steps of an epoch, the one before logged and evaluated: save if it is due."""
        self._stepped(state)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Between two epochs: the same, before the loader of the next one draws."""
        self._stepped(state)

    def _stepped(self, state: Any) -> None:
        if self._ckpt is not None and state.global_step != self._told:
            self._told = state.global_step
            self._ckpt.stepped(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save the end, and wait for it."""
        self._stepped(state)
        if self._ckpt is not None:
            self._ckpt.close()
            self._ckpt = None


class _TrainerState:
    """The `Trainer`'s own state as text, with that of its callbacks, as its own checkpoints hold it."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, str]:
        trainer = self._trainer
        state = dataclasses.asdict(trainer.state)
        of_callbacks: dict[str, Any] = {}
        for one in [*trainer.callback_handler.callbacks, trainer.control]:
            if not isinstance(one, ExportableState):
                continue
            name, own = type(one).__name__, one.state()
            before = of_callbacks.get(name)
            of_callbacks[name] = own if before is None else [*(before if isinstance(before, list) else [before]), own]
        state["stateful_callbacks"] = of_callbacks
        return {"json": json.dumps(state, sort_keys=True)}

    def load_state_dict(self, state: dict[str, str]) -> None:
        """Read by the `Trainer` itself."""

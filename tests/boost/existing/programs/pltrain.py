"""Trains a small model with Lightning. Usage: pltrain.py FOLDER LOG [STEP]: killed by SIGKILL after that step."""

import os
import signal
import sys

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything

from ettrain.lightning import Checkpoint

FOLDER, LOG, DIES = sys.argv[1], sys.argv[2], int("".join(sys.argv[3:]) or 0)


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.full((8,), index / 40), index


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Dropout(0.3), torch.nn.Linear(32, 1))

    def training_step(self, batch, index):
        return (self.net(batch[0]) - 1).pow(2).mean()

    def validation_step(self, batch, index):
        self.log("val", self.net(batch[0]).mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step), "interval": "step"}]


class Diary(Callback):
    def __init__(self):
        self.seen = 0

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.seen += 1
        with open(LOG, "a") as file:
            file.write(f"{trainer.global_step} {trainer.current_epoch} {index} {self.seen} {' '.join(map(str, batch[1].tolist()))}\n")
        if trainer.global_step == DIES:
            os.kill(os.getpid(), signal.SIGKILL)


def main():
    seed_everything(3, verbose=False)
    model = Model()
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    sampler = torch.utils.data.DistributedSampler(Rows(), world, rank, seed=3) if world > 1 else None
    loader = torch.utils.data.DataLoader(Rows(), batch_size=4, shuffle=sampler is None, sampler=sampler)
    checkpoint = Checkpoint(FOLDER, loader=loader, every=3)
    trainer = Trainer(
        max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[Diary(), checkpoint], devices=world, strategy="ddp" if world > 1 else "auto",
    )  # fmt: skip
    trainer.fit(model, checkpoint.loader, torch.utils.data.DataLoader(Rows(), batch_size=8))
    torch.save({"model": model.state_dict()}, f"{FOLDER}.end")


if __name__ == "__main__":
    main()

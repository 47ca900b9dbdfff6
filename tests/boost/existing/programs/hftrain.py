"""Trains a small model with transformers' Trainer. Usage: hftrain.py FOLDER LOG [STEP]: killed by SIGKILL after that step if it began anew."""

import os
import signal
import sys

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

from ettrain.huggingface import Checkpoint

FOLDER, LOG, DIES = sys.argv[1], sys.argv[2], int("".join(sys.argv[3:]) or 0)


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return {"x": torch.full((8,), index / 40), "row": index}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Dropout(0.3), torch.nn.Linear(32, 1))
        self.rows = []

    def forward(self, x, row):
        self.rows = row.tolist()
        return {"loss": (self.net(x) - 1).pow(2).mean()}


class Diary(TrainerCallback):
    def on_step_end(self, args, state, control, model=None, **kwargs):
        with open(f"{LOG}", "a") as file:
            file.write(f"{state.global_step} {' '.join(map(str, model.rows))}\n")
        if state.global_step == DIES:
            os.kill(os.getpid(), signal.SIGKILL)


def main():
    set_seed(3)
    model = Model()
    checkpoint = Checkpoint(FOLDER, every=3)
    args = TrainingArguments(
        output_dir=f"{FOLDER}-out", num_train_epochs=3, per_device_train_batch_size=4, learning_rate=0.01, warmup_steps=5, save_strategy="no",
        report_to=[], disable_tqdm=True, use_cpu=True, logging_steps=7, seed=3, remove_unused_columns=False, eval_strategy="epoch",
    )  # fmt: skip
    trainer = Trainer(model=model, args=args, train_dataset=Rows(), eval_dataset=Rows(), callbacks=[Diary(), checkpoint])
    trainer.train(resume_from_checkpoint=checkpoint.resume(trainer))
    torch.save({"model": model.state_dict(), "log": [one.get("loss") for one in trainer.state.log_history]}, f"{FOLDER}.end")


if __name__ == "__main__":
    main()

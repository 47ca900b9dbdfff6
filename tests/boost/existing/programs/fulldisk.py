"""Saves until the disk is full, by a path and into an open file. Usage: fulldisk.py FOLDER."""

import json
import os
import sys

import torch


def main():
    os.chdir(sys.argv[1])
    raised = []
    for value in (1, 2, 3):
        try:
            torch.save({"w": torch.full((2_000_000,), float(value))}, "a.pt")  # 8 MB of the 12 there are
            os.path.exists("a.pt")  # until it was tried
        except Exception as error:  # noqa: BLE001 - whatever torch raises
            raised.append([value, type(error).__name__])
    with open("b.tmp", "wb") as file:
        torch.save({"w": torch.ones(2_000_000)}, file)
    os.path.exists("b.tmp")  # until it was tried
    try:
        os.replace("b.tmp", "a.pt")
    except OSError as error:
        raised.append(["replace", error.errno])
    try:
        with open("c.pt", "wb") as file:
            torch.save({"a": lambda: 0}, file)
    except Exception:  # noqa: BLE001 - a pickling error
        raised.append("unpicklable")
    print(json.dumps({"raised": raised, "a": torch.load("a.pt")["w"][0].item()}))


if __name__ == "__main__":
    main()

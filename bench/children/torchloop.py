"""A real torch program for `bench/recorder.py`; knows nothing of ettrain unless it is injected.

`import`: prints the CPU seconds of `import torch`.
`train PAIRS`: trains a tiny model in blocks, the recorder's per-step hooks in place in one and taken off in the next (the wrapped
functions put back, the optimizer's hook removed), and prints wall and CPU seconds per block: {"with": [...], "without": [...], ...}.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

BLOCK = 20


def main() -> None:
    """Do it."""
    begin = time.process_time()
    import torch

    took = time.process_time() - begin
    if sys.argv[1] == "import":
        print(json.dumps({"cpu_s": took}))
        return
    torch.set_num_threads(1)
    print(json.dumps(_train(torch, int(sys.argv[2]))))


class _Hooks:
    """The recorder's per-step hooks on torch, to be put on and taken off."""

    def __init__(self) -> None:
        import torch.optim.optimizer as optimizers
        from torch.utils.data import dataloader

        self._posts = optimizers._global_optimizer_post_hooks
        self._our_posts = dict(self._posts)
        self._autograd = sys.modules["torch.autograd"]
        self._loader = dataloader._BaseDataLoaderIter
        self._ours = (self._autograd.backward, self._loader.__next__)
        self._torchs = tuple(function.__wrapped__ for function in self._ours)

    def put(self, *, on: bool) -> None:
        """Put them on or take them off."""
        self._autograd.backward, self._loader.__next__ = self._ours if on else self._torchs
        self._posts.clear()
        if on:
            self._posts.update(self._our_posts)


def _train(torch: Any, pairs: int) -> dict[str, list[float]]:
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = _batches(torch)
    hooks = _Hooks()
    times: dict[str, list[float]] = {"with": [], "without": [], "with_cpu": [], "without_cpu": []}
    _block(model, optimizer, batches)
    for pair in range(pairs):
        for on in (True, False) if pair % 2 else (False, True):
            hooks.put(on=on)
            wall, cpu = time.perf_counter(), time.thread_time()
            _block(model, optimizer, batches)
            times["with" if on else "without"].append((time.perf_counter() - wall) / BLOCK)
            times["with_cpu" if on else "without_cpu"].append((time.thread_time() - cpu) / BLOCK)
    hooks.put(on=True)
    return times


def _batches(torch: Any) -> Iterator[Any]:
    data = torch.utils.data.TensorDataset(torch.randn(64 * 1000, 64), torch.randn(64 * 1000, 1))
    while True:
        yield from torch.utils.data.DataLoader(data, batch_size=64)


def _block(model: Any, optimizer: Any, batches: Iterator[Any]) -> None:
    for _ in range(BLOCK):
        inputs, targets = next(batches)
        loss = (model(inputs) - targets).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()

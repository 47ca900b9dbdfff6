"""A training of two ranks that ends with an inference model: `publishes.py none|inside|publish KIND ROWS FOLDER`, under torchrun.

`inside` exports on rank 0 while the other rank waits, as programs do; `publish` asks `ett.publish`; `none` only saves the checkpoint.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ettrain as ett

WIDTH = 32
BATCH = 64


class Ranker(nn.Module):
    def __init__(self, rows: int) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(rows, WIDTH, mode="sum")
        self.top = nn.Sequential(nn.Linear(WIDTH + 13, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        return self.top(torch.cat([dense, self.table(ids)], 1)).squeeze(1)


def export(model: nn.Module, kind: str, batch: tuple[Tensor, ...], file: Path) -> None:
    """What a careful program does: export, read back, compare."""
    model.eval()
    with torch.no_grad():
        expected = model(*batch)
        shapes = ({0: torch.export.Dim.AUTO}, {0: torch.export.Dim.AUTO})
        program = torch.export.export(model, batch, dynamic_shapes=shapes)
        if kind == "aoti":
            torch._inductor.aoti_compile_and_package(program, package_path=str(file))
            found = torch._inductor.aoti_load_package(str(file))(*batch)
        else:
            torch.export.save(program, file)
            found = torch.export.load(file).module()(*batch)
        torch.testing.assert_close(found, expected)


def main() -> None:
    warnings.simplefilter("ignore")
    way, kind, rows, folder = sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Ranker(rows)
    forward = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = (torch.randn(BATCH, 13), torch.randint(0, rows, (BATCH, 8)))
    for _ in range(4):
        optimizer.zero_grad()
        forward(*batch).mean().backward()
        optimizer.step()
    trained = time.time()
    dcp.save({"model": model.state_dict()}, checkpoint_id=folder / "step-4")
    if way == "inside" and dist.get_rank() == 0:
        export(model, kind, batch, folder / "model.pt2")
        print(json.dumps({"updated_s": time.time() - trained}), flush=True)
    if way == "publish":
        ett.publish(
            folder / "step-4", to=folder, model=Ranker, arguments={"rows": rows}, batch=batch, reference=model, export=kind, name="ranker"
        )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

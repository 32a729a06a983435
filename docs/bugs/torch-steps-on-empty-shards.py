"""Optimizers of PyTorch 2.13.0 fail on a DTensor parameter with fewer rows than ranks.

A linear layer with three outputs is cut by them, or by its three inputs, on four ranks, so the last
rank has no shard. The step raises on all ranks: `add_` of SGD, `lerp_` of AdamW would need another
placement.
"""

import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

WORLD = 4
STYLES = {"by outputs": ColwiseParallel, "by inputs": RowwiseParallel}


def train(rank: int, folder: str) -> None:
    """Take a step with each style and optimizer; rank 0 prints what comes of it."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=WORLD
    )
    mesh = init_device_mesh("cpu", (WORLD,))
    for how, style in STYLES.items():
        for name in ("SGD", "AdamW"):
            torch.manual_seed(0)
            layer = nn.Sequential(nn.Linear(3, 3))
            layouts = {"output_layouts" if how == "by outputs" else "input_layouts": Replicate()}
            parallelize_module(layer, mesh, {"0": style(**layouts)})
            optimizer = getattr(torch.optim, name)(layer.parameters(), lr=0.1)
            layer(torch.ones(2, 3)).square().mean().backward()
            try:
                optimizer.step()
                told = "steps"
            except RuntimeError as error:
                told = f"raises {str(error).splitlines()[0]}"
            if rank == 0:
                print(f"{how}, {name}: {told}", flush=True)
            dist.barrier()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(train, (folder,), WORLD, start_method="fork")
    sys.exit(0)

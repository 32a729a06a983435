"""SequenceParallel of PyTorch 2.13.0 trains a norm whose parameters are frozen.

It replicates them as new parameters, and does not hand on `requires_grad`; ColwiseParallel and
RowwiseParallel do.
"""

import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    SequenceParallel,
    parallelize_module,
)

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/meeting", rank=0, world_size=1
        )
        mesh = init_device_mesh("cpu", (1,))
        model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4)).requires_grad_(False)
        parallelize_module(model, mesh, {"0": SequenceParallel(), "1": ColwiseParallel()})
        for name, parameter in model.named_parameters():
            print(f"{name} is {'trained' if parameter.requires_grad else 'frozen'}", flush=True)
        output = model(torch.arange(8.0).reshape(1, 2, 4))
        print(f"its output needs a gradient: {output.requires_grad}")
        dist.destroy_process_group()
    sys.exit(0)

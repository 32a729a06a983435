"""Shards linear layers and embeddings with DTensor; the rest is the same on all ranks."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

if TYPE_CHECKING:
    from torch.distributed.tensor.parallel import ParallelStyle

    from tapml.distributed.job_file import Job


def distribute(model: nn.Module, job: Job, rank: int, world: int, **options: str) -> nn.Module:
    """Shard linear layers by their outputs and inputs in turn, embeddings by their rows."""
    del job, rank, options
    mesh = init_device_mesh("cpu", (world,))
    uses = Counter(
        id(parameter)
        for module in model.modules()
        for parameter in module.parameters(recurse=False)
    )
    plan: dict[str, ParallelStyle] = {}
    linear = 0
    for name, module in model.named_modules():
        # A tied parameter would be cut in one of its modules only.
        alone = all(uses[id(each)] == 1 for each in module.parameters(recurse=False))
        if not name or not alone:
            continue
        if type(module) is nn.Linear:
            by_outputs = ColwiseParallel(output_layouts=Replicate())
            by_inputs = RowwiseParallel(input_layouts=Replicate())
            plan[name] = by_inputs if linear % 2 else by_outputs
            linear += 1
        elif type(module) is nn.Embedding and module.padding_idx is None:
            plan[name] = RowwiseParallel(input_layouts=Replicate())
    parallelize_module(model, mesh, plan)
    return model

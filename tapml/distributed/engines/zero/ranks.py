"""Wraps a model in DistributedDataParallel, and shards the job's optimizer."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from torch import nn

    from tapml.distributed.job_file import Job


def distribute(model: nn.Module, job: Job, rank: int, world: int, **options: str) -> nn.Module:
    """Wrap the model with the library's defaults."""
    del job, rank, world, options
    return DistributedDataParallel(model)


def shard_optimizer(optimizer: Any, model: nn.Module) -> tuple[Any, Any]:
    """An optimizer of the same class and options, each rank with a part of its parameters."""
    del model
    known = inspect.signature(type(optimizer)).parameters
    groups = [
        {name: value for name, value in group.items() if name == "params" or name in known}
        for group in optimizer.param_groups
    ]
    options = {name: value for name, value in optimizer.defaults.items() if name in known}
    made = ZeroRedundancyOptimizer(groups, type(optimizer), **options)
    return made, made.optim

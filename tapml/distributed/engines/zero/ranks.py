"""Wraps a model in DistributedDataParallel, and shards the job's optimizer."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from tapml.distributed.optimizers import map_optimizers

if TYPE_CHECKING:
    from torch import nn

    from tapml.distributed.job_file import Job


def distribute(model: nn.Module, job: Job, rank: int, world: int, **options: str) -> nn.Module:
    """Wrap the model with the library's defaults."""
    del job, rank, world, options
    return DistributedDataParallel(model)


def shard_optimizer(optimizer: Any, model: nn.Module) -> tuple[Any, Any]:
    """Optimizers of the same classes and options, each rank with a part of their parameters."""
    del model
    made = map_optimizers(optimizer, _sharded)
    return made, map_optimizers(made, lambda each: each.optim)


def _sharded(optimizer: Any) -> ZeroRedundancyOptimizer:
    known = inspect.signature(type(optimizer)).parameters
    groups = [
        {name: value for name, value in group.items() if name == "params" or name in known}
        for group in optimizer.param_groups
    ]
    options = {name: value for name, value in optimizer.defaults.items() if name in known}
    return ZeroRedundancyOptimizer(groups, type(optimizer), **options)

"""Wraps a model in DistributedDataParallel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from tapml.distributed.accumulating import accumulate

if TYPE_CHECKING:
    from torch import nn

    from tapml.distributed.job_file import Job

_REDUCERS: Final[dict[str, dict[str, Any]]] = {
    "usual": {},
    "static_graph": {"static_graph": True},
    "bucket_view": {"gradient_as_bucket_view": True},
    "find_unused": {"find_unused_parameters": True},
    # One kilobyte: a bucket for nearly every parameter.
    "small_buckets": {"bucket_cap_mb": 0.001},
}


def distribute(
    model: nn.Module,
    job: Job,
    rank: int,
    world: int,
    *,
    hook: str = "none",
    reducer: str = "usual",
    compile: str = "no",
    accumulation: str = "1",
) -> nn.Module:
    """Wrap the model: with the library's defaults, unless a parameter says otherwise."""
    del job, rank, world, accumulation
    wrapped: Any = DistributedDataParallel(model, **_REDUCERS[reducer])
    if hook == "allreduce":
        wrapped.register_comm_hook(None, default_hooks.allreduce_hook)
    elif hook == "fp16":
        wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=0.5)
        wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    if compile != "no":
        wrapped = torch.compile(wrapped, backend=compile)
    found: nn.Module = wrapped
    return found


def step(
    job: Job, model: Any, batch: Any, optimizer: Any, *, accumulation: str = "1", **options: str
) -> None:
    """The job's step, in micro-batches of which only the last is reduced."""
    del options
    inner = getattr(model, "_orig_mod", model)
    accumulate(job, model, batch, optimizer, int(accumulation), inner.no_sync)

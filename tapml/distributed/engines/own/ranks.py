"""Calls the job's function `distribute`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from tapml.distributed.job_file import Job


def distribute(model: nn.Module, job: Job, rank: int, world: int, **options: str) -> nn.Module:
    """Wrap the model as the job does."""
    del options
    return job.distribute(model, rank, world)

"""What every child process of a check does first."""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from tapml.isolate.member import Member

SEED: Final = 1


def join(member: Member, deadline_seconds: float, part: Mapping[str, Any] | None = None) -> None:
    """Create the default process group; one device has a group of one.

    `part` is what ranks on several machines get; None if all are on this one.
    """
    # The group's deadline comes first, so that all ranks can still say where they are.
    timeout = timedelta(seconds=deadline_seconds + 60)
    if part is not None:
        from tapml.distributed.machines.meeting import meet

        meet(member, part, timeout)
        return
    dist.init_process_group(
        "gloo",
        init_method=f"file://{member.folder}/store",
        rank=member.rank,
        world_size=member.size,
        timeout=timeout,
    )


def seed_all() -> None:
    """The same random numbers in every process; the runs do not rely on it."""
    random.seed(SEED)
    np.random.seed(SEED)  # noqa: NPY002  (what jobs draw from)
    torch.manual_seed(SEED)


def named_tensors(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Parameters and buffers, also those that no state_dict has; tied ones once."""
    return [*model.named_parameters(), *model.named_buffers()]

"""What DistributedDataParallel runs on."""

from __future__ import annotations

from typing import Final

TITLE: Final = "DistributedDataParallel"
PRELOAD: Final = ("torch.nn.parallel.distributed",)


def refuse(world: int, *, has_distribute: bool) -> str:
    """It takes any world."""
    del world, has_distribute
    return ""

"""What the job's own wrapping runs on."""

from __future__ import annotations

from typing import Final

TITLE: Final = "the job's distribute()"
PRELOAD: Final = ("torch.nn.parallel.distributed",)


def refuse(world: int, *, has_distribute: bool) -> str:
    """It needs the function `distribute`."""
    del world
    return "" if has_distribute else "the job defines no distribute(model, rank, world)"

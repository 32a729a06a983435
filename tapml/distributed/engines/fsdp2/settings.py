"""What FSDP2 runs on."""

from __future__ import annotations

from typing import Final

TITLE: Final = "FSDP2 (fully_shard)"
PRELOAD: Final = ("torch.distributed.fsdp", "torch.distributed.device_mesh")


def refuse(world: int, *, has_distribute: bool) -> str:
    """It takes any world; ranks without rows of a parameter hold an empty shard."""
    del world, has_distribute
    return ""

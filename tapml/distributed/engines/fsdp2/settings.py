"""What FSDP2 runs on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tapml.distributed.engine import Published, Rule, Traits
from tapml.distributed.results import Setting

TITLE: Final = "FSDP2 (fully_shard)"
PRELOAD: Final = ("torch.distributed.fsdp", "torch.distributed.device_mesh")
SPLITS: Final = True
FLOAT64: Final = True
OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {}
RULES: Final[tuple[Rule, ...]] = ()


def missing(setting: Setting) -> str:
    """It comes with PyTorch."""
    del setting
    return ""


def refuse(setting: Setting, traits: Traits) -> str:
    """It takes any world; ranks without rows of a parameter hold an empty shard."""
    del setting, traits
    return ""


def published() -> list[Published]:
    """The paper has no such settings."""
    return []

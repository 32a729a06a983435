"""What HSDP (fully_shard on replicas of pairs) runs on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tapml.distributed.engine import Published, Rule, Traits
from tapml.distributed.results import Setting

TITLE: Final = "HSDP (fully_shard on replicas of pairs)"
PRELOAD: Final = ("torch.distributed.fsdp", "torch.distributed.device_mesh")
SPLITS: Final = True
FLOAT64: Final = True
OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {}
RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "hybrid-has-pairs",
        "replicas of pairs need an even number of ranks, at least 4",
        lambda setting: setting.world < 4 or setting.world % 2 != 0,
    ),
)


def missing(setting: Setting) -> str:
    """It comes with PyTorch."""
    del setting
    return ""


def refuse(setting: Setting, traits: Traits) -> str:
    """It takes any model."""
    del setting, traits
    return ""


def published() -> list[Published]:
    """The paper has no such settings."""
    return []

"""What HSDP (fully_shard on replicas of pairs) runs on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tapml.distributed import engine_defaults
from tapml.distributed.engine import Rule

TITLE: Final = "HSDP (fully_shard on replicas of pairs)"
PRELOAD: Final = ("torch.distributed.fsdp", "torch.distributed.device_mesh")
SPLITS: Final = True
FLOAT64: Final = True
OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {}
RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "hybrid-has-pairs",
        "replicas of pairs need an even number of ranks",
        lambda setting: setting.world % 2 != 0,
    ),
)

missing = engine_defaults.missing
published = engine_defaults.published
refuse = engine_defaults.refuse

"""What ZeRO (ZeroRedundancyOptimizer under DDP) runs on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tapml.distributed import engine_defaults
from tapml.distributed.engine import Rule

TITLE: Final = "ZeRO (ZeroRedundancyOptimizer under DDP)"
PRELOAD: Final = ("torch.nn.parallel.distributed", "torch.distributed.optim")
SPLITS: Final = True
FLOAT64: Final = True
OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {}
RULES: Final[tuple[Rule, ...]] = ()

missing = engine_defaults.missing
published = engine_defaults.published
refuse = engine_defaults.refuse

"""What tensor parallelism (DTensor) runs on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tapml.distributed import engine_defaults
from tapml.distributed.engine import Rule, Traits
from tapml.distributed.results import Setting

TITLE: Final = "tensor parallelism (DTensor)"
PRELOAD: Final = ("torch.distributed.tensor.parallel", "torch.distributed.device_mesh")
SPLITS: Final = False
FLOAT64: Final = True
OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {}
RULES: Final[tuple[Rule, ...]] = ()


def refuse(setting: Setting, traits: Traits) -> str:
    """It needs a layer to shard."""
    del setting
    sharded = {"Linear", "Embedding"} & set(traits.modules.values())
    return "" if sharded else "the model has no Linear and no Embedding to shard"


missing = engine_defaults.missing
published = engine_defaults.published

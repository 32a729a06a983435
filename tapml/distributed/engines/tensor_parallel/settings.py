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
OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {"sequence": ("whole", "sharded")}
RULES: Final[tuple[Rule, ...]] = ()


def usual(traits: Traits) -> dict[str, tuple[str, ...]]:
    """Without sequence parallelism."""
    del traits
    return dict.fromkeys(OPTIONS, ())


def refuse(setting: Setting, traits: Traits) -> str:
    """It needs a layer to shard; sequence parallelism, a norm."""
    kinds = set(traits.modules.values())
    if not {"Linear", "Embedding"} & kinds:
        return "the model has no Linear and no Embedding to shard"
    if setting.options.get("sequence") == "sharded" and not {"LayerNorm", "RMSNorm"} & kinds:
        return "the model has no LayerNorm and no RMSNorm, whose input sequence parallelism shards"
    return ""


missing = engine_defaults.missing
published = engine_defaults.published

"""What tensor parallelism (DTensor) runs on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tapml.distributed.engine import Published, Rule, Traits
from tapml.distributed.results import Setting

TITLE: Final = "tensor parallelism (DTensor)"
PRELOAD: Final = ("torch.distributed.tensor.parallel", "torch.distributed.device_mesh")
SPLITS: Final = False
FLOAT64: Final = True
OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {}
RULES: Final[tuple[Rule, ...]] = ()


def missing(setting: Setting) -> str:
    """It comes with PyTorch."""
    del setting
    return ""


def refuse(setting: Setting, traits: Traits) -> str:
    """It needs a layer to shard."""
    del setting
    sharded = {"Linear", "Embedding"} & set(traits.modules.values())
    return "" if sharded else "the model has no Linear and no Embedding to shard"


def published() -> list[Published]:
    """The paper has no such settings."""
    return []

"""What the job's own wrapping runs on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tapml.distributed import engine_defaults
from tapml.distributed.engine import Rule, Traits
from tapml.distributed.results import Setting

TITLE: Final = "the job's distribute()"
PRELOAD: Final = ("torch.nn.parallel.distributed",)
SPLITS: Final = True
FLOAT64: Final = True
OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {}
RULES: Final[tuple[Rule, ...]] = ()


def refuse(setting: Setting, traits: Traits) -> str:
    """It needs the function `distribute`."""
    del setting
    return "" if traits.has_distribute else "the job defines no distribute(model, rank, world)"


missing = engine_defaults.missing
published = engine_defaults.published

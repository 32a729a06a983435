"""What the job's own wrapping runs on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tapml.distributed.engine import Published, Rule, Traits
from tapml.distributed.results import Setting

TITLE: Final = "the job's distribute()"
PRELOAD: Final = ("torch.nn.parallel.distributed",)
SPLITS: Final = True
FLOAT64: Final = True
OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {}
RULES: Final[tuple[Rule, ...]] = ()


def missing(setting: Setting) -> str:
    """It comes with PyTorch."""
    del setting
    return ""


def refuse(setting: Setting, traits: Traits) -> str:
    """It needs the function `distribute`."""
    del setting
    return "" if traits.has_distribute else "the job defines no distribute(model, rank, world)"


def published() -> list[Published]:
    """The paper has no such settings."""
    return []

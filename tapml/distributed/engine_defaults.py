"""What the settings of most engines say: they come with PyTorch, take any job, and are not D3's."""

from __future__ import annotations

from tapml.distributed.engine import Published, Traits
from tapml.distributed.results import Setting


def missing(setting: Setting) -> str:
    """Nothing: it comes with PyTorch."""
    del setting
    return ""


def refuse(setting: Setting, traits: Traits) -> str:
    """It takes any world and any model."""
    del setting, traits
    return ""


def published() -> list[Published]:
    """The paper has no such settings."""
    return []

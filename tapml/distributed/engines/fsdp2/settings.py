"""What FSDP2 runs on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tapml.distributed import engine_defaults
from tapml.distributed.engine import Rule, Traits

TITLE: Final = "FSDP2 (fully_shard)"
PRELOAD: Final = ("torch.distributed.fsdp", "torch.distributed.device_mesh")
SPLITS: Final = True
FLOAT64: Final = True
OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "reshard": ("yes", "no"),
    "precision": ("same", "bfloat16"),
    "activations": ("kept", "recomputed"),
    "accumulation": ("1", "2", "4"),
    "saved_by": ("none", "1", "2", "4"),
    "resumed_by": ("none", "1", "2", "4"),
}
COMMON_FOLDER: Final = ("saved_by", "resumed_by")
RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "saved-by-ranks",
        "a checkpoint is written by ranks of this world",
        lambda setting: any(
            setting.options.get(name, "none") != "none"
            and int(setting.options[name]) > setting.world
            for name in ("saved_by", "resumed_by")
        ),
    ),
)


def usual(traits: Traits) -> dict[str, tuple[str, ...]]:
    """The library's defaults."""
    del traits
    return dict.fromkeys(OPTIONS, ())


missing = engine_defaults.missing
published = engine_defaults.published
refuse = engine_defaults.refuse

"""What DistributedDataParallel runs on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tapml.distributed import engine_defaults
from tapml.distributed.engine import Rule, Traits

TITLE: Final = "DistributedDataParallel"
PRELOAD: Final = ("torch.nn.parallel.distributed",)
SPLITS: Final = True
FLOAT64: Final = True
OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "hook": ("none", "allreduce", "fp16", "powersgd"),
    "reducer": ("usual", "static_graph", "bucket_view", "find_unused", "small_buckets"),
    "accumulation": ("1", "2", "4"),
    "compile": ("no", "aot_eager", "inductor"),
}
RULES: Final[tuple[Rule, ...]] = ()


def usual(traits: Traits) -> dict[str, tuple[str, ...]]:
    """The library's defaults."""
    del traits
    return dict.fromkeys(OPTIONS, ())


missing = engine_defaults.missing
published = engine_defaults.published
refuse = engine_defaults.refuse

"""What pipeline schedules run on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tapml.distributed import engine_defaults
from tapml.distributed.engine import Rule, Traits
from tapml.distributed.results import Setting

TITLE: Final = "pipeline schedules (torch.distributed.pipelining)"
PRELOAD: Final = ("torch.distributed.pipelining",)
SPLITS: Final = False
FLOAT64: Final = True
OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "schedule": ("gpipe", "1f1b", "interleaved", "looped_bfs"),
    "microbatches": ("2", "4", "8"),
}
SEVERAL_STAGES: Final = ("interleaved", "looped_bfs")
RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "one-microbatch-per-rank",
        "1F1B needs at least as many micro-batches as stages",
        lambda setting: (
            setting.options["schedule"] == "1f1b"
            and int(setting.options["microbatches"]) < setting.world
        ),
    ),
    Rule(
        "interleaved-has-rounds",
        "interleaved 1F1B needs a multiple of the ranks as micro-batches",
        lambda setting: (
            setting.options["schedule"] == "interleaved"
            and int(setting.options["microbatches"]) % setting.world != 0
        ),
    ),
)


def usual(traits: Traits) -> dict[str, tuple[str, ...]]:
    """Every schedule, with four micro-batches."""
    del traits
    return {"microbatches": ("4",)}


def refuse(setting: Setting, traits: Traits) -> str:
    """Stages are children of a Sequential; the schedule calls the loss."""
    if not {"inputs", "loss"} <= traits.functions:
        return "the job defines no inputs(batch) and loss(output, batch), which a schedule calls"
    if traits.modules.get("") != "Sequential":
        return "the model is no Sequential, whose children could be put on stages"
    children = sum(bool(path) and "." not in path for path in traits.modules)
    stages = setting.world * (2 if setting.options["schedule"] in SEVERAL_STAGES else 1)
    if children < stages:
        return f"the model has {children} children for {stages} stages"
    return ""


missing = engine_defaults.missing
published = engine_defaults.published

"""What JAX runs on: meshes of devices that one process drives."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final

from tapml.distributed import engine_defaults
from tapml.distributed.engine import Rule, Traits
from tapml.distributed.frameworks import Framework
from tapml.distributed.results import Setting
from tapml_targets.installed import install_hint

TITLE: Final = "JAX meshes (jit with shardings, or shard_map)"
PRELOAD: Final = ("jax", "tapml.distributed.engines.jax.ranks")
SPLITS: Final = True
FLOAT64: Final = True
OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "gradients": ("jit", "shard_map", "own"),
    "mesh": ("data", "data+model"),
    "parameters": ("replicated", "sharded"),
}
RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "shard-map-is-replicated",
        "a program for one device takes whole parameters, on a mesh of one dimension",
        lambda setting: (
            setting.options["gradients"] != "jit"
            and (setting.options["mesh"], setting.options["parameters"]) != ("data", "replicated")
        ),
    ),
    Rule(
        "model-is-sharded",
        "a mesh with a dimension for the model shards parameters over it, and is even",
        lambda setting: (
            setting.options["mesh"] == "data+model"
            and (setting.options["parameters"] != "sharded" or setting.world % 2 != 0)
        ),
    ),
)
FRAMEWORK: Final = Framework(
    prepare="tapml.distributed.engines.jax.ranks:prepare",
    run="tapml.distributed.engines.jax.ranks:run",
    slices="tapml.distributed.engines.jax.ranks:slice_gradients",
    package="jax",
    preload=PRELOAD,
    one_process=True,
)


def usual(traits: Traits) -> dict[str, tuple[str, ...]]:
    """The job's own gradients if it has some; else all of JAX's ways."""
    return {"gradients": ("own",) if traits.has_distribute else ("jit", "shard_map")}


def missing(setting: Setting) -> str:
    """It needs JAX."""
    del setting
    return "" if find_spec("jax") is not None else f"JAX: {install_hint('compare')}"


def refuse(setting: Setting, traits: Traits) -> str:
    """The job's own gradients need its function."""
    if setting.options["gradients"] == "own" and not traits.has_distribute:
        return "the job defines no distribute(loss, mesh)"
    return ""


published = engine_defaults.published

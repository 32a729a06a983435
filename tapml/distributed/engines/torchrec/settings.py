"""What TorchRec runs on: the parameters of D3's table I and which combinations are valid."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final

from tapml.distributed.engine import Published, Rule, Served, Traits
from tapml.distributed.results import Setting
from tapml_targets.installed import install_hint

TITLE: Final = "TorchRec (sharded embedding tables)"
PRELOAD: Final = (
    "torchrec.distributed.model_parallel",
    "torchrec.distributed.embeddingbag",
    "torchrec.distributed.planner",
    "torchrec.inference.modules",
    "fbgemm_gpu.split_embedding_configs",
)
SPLITS: Final = True
FLOAT64: Final = False

OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "sharding": ("TW", "RW", "CW", "DP", "TWRW", "TWCW", "GRID"),
    "sharder": ("EBCS", "EBS", "quantized"),
    "kernel": ("fused", "dense"),
    "weights": ("float32", "float16", "int8"),
    "activations": ("float32", "float16", "int8"),
    "device": ("cpu", "gpu"),
}
SHARDED_CLASS: Final = {
    "EBCS": "EmbeddingBagCollection",
    "EBS": "EmbeddingBag",
    "quantized": "EmbeddingBagCollection",
}
ALONE: Final = "pip install --no-deps torchrec==1.8.0 fbgemm-gpu-cpu==1.8.0"
"""Their own requirements pull CUDA; the extra ``torchrec`` has what else they need."""


RULES: Final = (
    Rule(
        "training-is-float32",
        "only the quantized sharder takes tables or gives activations of another format",
        lambda setting: (
            setting.options["sharder"] != "quantized"
            and (setting.options["weights"], setting.options["activations"])
            != ("float32", "float32")
        ),
    ),
    Rule(
        "quantized-has-its-kernel",
        "quantized tables have a kernel of their own; it counts as fused",
        lambda setting: (
            setting.options["sharder"] == "quantized" and setting.options["kernel"] == "dense"
        ),
    ),
    Rule(
        "quantized-is-not-replicated",
        "quantized tables are sharded by table, row or column: other specifications are not "
        "enumerable",
        lambda setting: (
            setting.options["sharder"] == "quantized"
            and setting.options["sharding"] not in ("TW", "RW", "CW")
        ),
    ),
    Rule(
        "floats-are-sharded-by-table",
        "shards by row and column split scale and bias off, which only tables of int8 have",
        lambda setting: (
            setting.options["sharder"] == "quantized"
            and setting.options["weights"] != "int8"
            and setting.options["sharding"] != "TW"
        ),
    ),
    Rule(
        "int8-outputs-have-no-names",
        "int8 outputs carry scale and bias beside the values: the tables' output cannot be taken "
        "by name (the paper's bug 21)",
        lambda setting: (
            setting.options["sharder"] == "quantized" and setting.options["activations"] == "int8"
        ),
    ),
    Rule(
        "dense-is-data-parallel",
        "the dense kernel requires DATA_PARALLEL",
        lambda setting: (
            setting.options["kernel"] == "dense" and setting.options["sharding"] != "DP"
        ),
    ),
    Rule(
        "data-parallel-is-dense",
        "replicated tables have the dense kernel alone",
        lambda setting: (
            setting.options["kernel"] == "fused" and setting.options["sharding"] == "DP"
        ),
    ),
    Rule(
        "bags-are-cut",
        "EmbeddingBagSharder does not support TABLE_WISE (the paper's bug 18)",
        lambda setting: setting.options["sharder"] == "EBS" and setting.options["sharding"] == "TW",
    ),
    Rule(
        "bags-have-no-grid",
        "EmbeddingBagSharder does not support GRID_SHARD",
        lambda setting: (
            setting.options["sharder"] == "EBS" and setting.options["sharding"] == "GRID"
        ),
    ),
)

_PUBLISHED_WORLDS: Final = (1, 2, 3, 4, 8)
_NO_GPU: Final = "a GPU and NCCL: settings with device gpu are not run by tapml"
# A float16 sum of parts rounds each of them.
_ROUNDOFF: Final = {"float16": 2.0**-11}


def usual(traits: Traits) -> dict[str, tuple[str, ...]]:
    """Training, with the sharders whose modules the model has."""
    fits = tuple(each for each in ("EBCS", "EBS") if _has(SHARDED_CLASS[each], traits))
    return {"sharder": fits} if fits else {}


def serves(setting: Setting) -> Served | None:
    """The quantized sharder serves; the others train."""
    if setting.options["sharder"] != "quantized":
        return None
    formats = {name: setting.options[name] for name in ("weights", "activations")}
    return Served(tuple(formats.items()), _ROUNDOFF.get(formats["activations"], 0.0))


def missing(setting: Setting) -> str:
    """TorchRec, or a GPU."""
    if setting.options["device"] == "gpu":
        return _NO_GPU
    absent = [name for name in ("torchrec", "fbgemm_gpu") if find_spec(name) is None]
    if not absent:
        return ""
    return f"{' and '.join(absent)}: {ALONE}, and {install_hint('torchrec')}"


def refuse(setting: Setting, traits: Traits) -> str:
    """The sharder needs a module of its kind."""
    name = SHARDED_CLASS[setting.options["sharder"]]
    return "" if _has(name, traits) else f"the model has no {name}, which the sharder shards"


def _has(name: str, traits: Traits) -> bool:
    """Whether a model has modules of a class; the bags of a collection are the collection's."""
    return any(
        found == name
        and traits.modules.get(path.rpartition(".embedding_bags.")[0]) not in SHARDED_CLASS.values()
        for path, found in traits.modules.items()
    )


def published() -> list[Published]:
    """The 77 settings of the paper's configuration: all its kernels are dense, here fused."""
    alone = [
        "float32, activations float32",
        *(f"quantized int8, activations {each}" for each in ("float16", "float32")),
    ]
    found = [
        Published(f"one device, {device}, {formats}", _lacks(device))
        for formats in alone
        for device in ("cpu", "gpu")
    ]
    families = [
        ("gpu", "EBCS", ("RW", "DP", "CW", "TW")),
        ("gpu", "EBS", ("RW", "DP", "CW")),
        ("cpu", "EBCS", ("TW", "CW", "DP")),
        ("cpu", "EBS", ("DP",)),
    ]
    found += [
        Published(
            f"{sharder} {sharding} x {world}, {device}, float32, activations float32",
            _lacks(device),
        )
        for device, sharder, shardings in families
        for sharding in shardings
        for world in _PUBLISHED_WORLDS
    ]
    return found + [
        Published(
            f"quantized TW x {world}, {device}, int8, activations {activations}",
            _lacks(device),
        )
        for device in ("cpu", "gpu")
        for world in (1, 2, 3, 4)
        for activations in ("float16", "float32")
    ]


def _lacks(device: str) -> str:
    return missing(Setting(engine="torchrec", world=1, options={"device": device}))

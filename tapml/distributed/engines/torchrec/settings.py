"""What TorchRec runs on: the parameters of D3's table I and which combinations are valid."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final

from tapml.distributed.engine import Published, Rule, Traits
from tapml.distributed.results import Setting

TITLE: Final = "TorchRec (sharded embedding tables)"
PRELOAD: Final = (
    "torchrec.distributed.model_parallel",
    "torchrec.distributed.embeddingbag",
    "torchrec.distributed.planner",
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
SHARDED_CLASS: Final = {"EBCS": "EmbeddingBagCollection", "EBS": "EmbeddingBag"}
INSTALL: Final = (
    "pip install --no-deps torchrec==1.8.0 fbgemm-gpu-cpu==1.8.0 and pip install tensordict "
    "torchmetrics pyre-extensions iopath tqdm"
)


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
        "quantized-has-short-weights",
        "the quantized sharder takes tables of int8 or float16",
        lambda setting: (
            setting.options["sharder"] == "quantized" and setting.options["weights"] == "float32"
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
_NO_QUANTIZED: Final = "the quantized sharder: tapml runs training alone"


def missing(setting: Setting) -> str:
    """TorchRec, a GPU, or the quantized sharder."""
    if setting.options["device"] == "gpu":
        return _NO_GPU
    if setting.options["sharder"] == "quantized":
        return _NO_QUANTIZED
    absent = [name for name in ("torchrec", "fbgemm_gpu") if find_spec(name) is None]
    return f"{' and '.join(absent)}: {INSTALL}" if absent else ""


def refuse(setting: Setting, traits: Traits) -> str:
    """The sharder needs a module of its kind."""
    name = SHARDED_CLASS[setting.options["sharder"]]
    for path, found in traits.modules.items():
        # The bags of a collection are the collection's.
        inside = traits.modules.get(path.rpartition(".embedding_bags.")[0])
        if found == name and inside not in SHARDED_CLASS.values():
            return ""
    return f"the model has no {name}, which the sharder shards"


def published() -> list[Published]:
    """The 77 settings of the paper's configuration: all its kernels are dense, here fused."""
    alone = [
        ("one device, {device}, float32, activations float32", "", ""),
        *(
            (f"one device, {{device}}, quantized int8, activations {activations}", "quantized", "")
            for activations in ("float16", "float32")
        ),
    ]
    found = [
        Published(text.format(device=device), _lacks(device, sharder))
        for text, sharder, _ in alone
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
            _lacks(device, sharder),
        )
        for device, sharder, shardings in families
        for sharding in shardings
        for world in _PUBLISHED_WORLDS
    ]
    return found + [
        Published(
            f"quantized TW x {world}, {device}, int8, activations {activations}",
            _lacks(device, "quantized"),
        )
        for device in ("cpu", "gpu")
        for world in (1, 2, 3, 4)
        for activations in ("float16", "float32")
    ]


def _lacks(device: str, sharder: str) -> str:
    values = {"device": device, "sharder": sharder}
    return missing(Setting(engine="torchrec", world=1, options=values))

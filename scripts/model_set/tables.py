"""The tables of docs/compare.md about the model set, from its results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from scripts.marked_section import write_between
from scripts.model_set.case import KERAS_BACKENDS
from tapml.comparing.causes import Document, causes, faults, unique_inconsistencies

BEGIN: Final = "<!-- scripts/compare_model_set.py FOLDER --tables writes from here -->"
END: Final = "<!-- end of the tables -->"

# (kind of layer, backend): the scripts that show it alone. Any other difference is a false
# accusation until one is written. A failure needs none: the backend did not run the model.
CONFIRMED: Final = {
    ("Sub", "tvm"): "tvm-arithmetic-with-a-range.py",
    ("AveragePooling2D", "keras-torch"): "keras-average-pooling.py",
    ("BatchNormalization", "onnx-reference"): "onnx-reference-batch-normalization.py",
    ("Resize", "onnx-reference"): "onnx-reference-resize-align-corners.py",
    ("AveragePooling1D", "keras-torch"): "keras-average-pooling.py",
    ("LayerNormalization", "keras-torch"): "keras-normalization-axis.py",
    ("RMSNormalization", "keras-torch"): "keras-normalization-axis.py",
    ("AffineTransform", "keras-tensorflow"): "keras-affine-transform.py",
    ("Resizing", "keras-torch"): "keras-bicubic-resize.py",
    ("Resizing", "keras-openvino"): "keras-nearest-resize.py keras-bicubic-resize.py",
    **{("GaussianBlur", each): "keras-gaussian-blur.py" for each in KERAS_BACKENDS},
    ("Conv2DTranspose", "keras-tensorflow"): "keras-transposed-convolution.py",
    ("AdaptiveMaxPooling2D", "keras-tensorflow"): "keras-adaptive-max-pooling.py",
    ("MaxPool", "keras-jax"): "keras-max-pool-strides.py",
    ("MaxPool", "keras-numpy"): "keras-max-pool-strides.py",
    ("Norm", "keras-jax"): "keras-norm-axis.py",
    ("Norm", "keras-numpy"): "keras-norm-axis.py",
    ("Pad", "keras-torch"): "keras-symmetric-padding.py",
    ("GlobalMaxPool", "onnx-reference"): "onnx-reference-global-max-pool.py",
    ("ConstantOfShape", "tvm"): "tvm-constant-of-shape.py",
}
_DIFFERENCES: Final = ("inconsistent", "nan", "shape")

_TABLE_II: Final = """\
| data set of the paper | instances | TH-TF | TF-CN | CN-TH |
|---|---|---|---|---|
| ImageNet | 5,000 | 10 (34) | 21 (54) | 18 (46) |
| Driving | 5,614 | - | 3 (9) | 3 (12) |
| MNIST | 10,000 | - | 3 (9) | 3 (12) |
| Thai MNIST | 1,665 | - | 1 (3) | 1 (4) |
| KGS Go game | 12,288 | 2 (14) | 3 (12) | 3 (15) |
| Anime Faces | 14,490 | 1 (5) | - | 1 (6) |
| Dogs VS Cats | 832 | - | 2 (6) | 2 (8) |
| Dog species | 835 | - | 3 (8) | 3 (9) |
| Faces | 466 | 2 (14) | 3 (8) | 6 (15) |
| Pokedex | 1,300 | 1 (14) | 1 (3) | 2 (15) |
| GTSRB sign | 12,630 | 2 (14) | 2 (5) | 2 (7) |
| total: 104 (361) | | 18 (95) | 42 (117) | 44 (149) |
"""
_TABLE_III: Final = """\
| root of the paper | layers | backends | models | bugs |
|---|---|---|---|---|
| batch normalization | BatchNormalization | CNTK | 11 | 2 |
| padding scheme | Conv2D, DepthwiseConv2D, SeparableConv2D | TensorFlow, Theano | 15 | 2 |
| pooling scheme | AveragePooling2D | Theano | 3 | 1 |
| parameter organization | trainable convolution | CNTK, Theano | 18 | 2 |
"""


def false_accusations(results: Sequence[dict[str, Any]]) -> list[str]:
    """A line for each pair at fault that no script confirms."""
    lines = []
    for result in results:
        for pair in faults(result):
            if pair["status"] in _DIFFERENCES and _confirmed_by(pair) is None:
                lines.append(f"{result['name']}: {' / '.join(pair['backends'])}: {pair['status']} "
                             f"at {pair['layer']} ({pair['layer_kind']}), blamed "
                             f"{pair['blamed']}: {pair['reason']}")  # fmt: skip
    return lines


def _confirmed_by(pair: Document) -> str | None:
    # A single accuser has no majority; the layer's kind and the pair then say it.
    named = [pair["blamed"]] if pair["blamed"] else pair["backends"]
    scripts = (CONFIRMED.get((pair["layer_kind"], each)) for each in named)
    return next((each for each in scripts if each), None)


def write_tables(page: Path, results: Sequence[dict[str, Any]]) -> None:
    """Put the tables between the two marks of a page."""
    write_between(page, BEGIN, END, tables(results))


def tables(results: Sequence[dict[str, Any]]) -> str:
    """Ours, then the paper's."""
    named = [{**each, "model": each["name"]} for each in results]
    pairs = [pair for each in named for pair in each["pairs"]]
    accused = sum(len(faults(each)) for each in named)
    unconfirmed = len(false_accusations(results))
    statuses = Counter(each["status"] for each in pairs)
    counts = ", ".join(f"{number} {status}" for status, number in statuses.most_common())
    shares = [each["metrics"]["share"] for each in pairs if each["status"] == "inconsistent"]
    share = f"{sum(shares) / len(shares):.1%}" if shares else "-"
    lines = [
        f"{len(named)} models, {len({b['name'] for each in named for b in each['backends']})} "
        f"backends, {len(pairs)} pairs: {counts}. {accused} accusations, {unconfirmed} of them "
        f"false. Inconsistencies are triggered by {share} of the instances on average (paper: "
        f"21.9 %). A pair takes {_seconds_a_pair(named):.1f} processor seconds at the median of "
        "the models, without making them.",
        "",
        "| data set | models | instances | pairs | unique (total) inconsistencies |",
        "|---|---|---|---|---|",
    ]
    for group in dict.fromkeys(each["group"] for each in named):
        own = [each for each in named if each["group"] == group]
        lines.append(f"| {group} | {len(own)} | {_range(own)} | "
                     f"{sum(len(each['pairs']) for each in own)} | {_count(own)} |")  # fmt: skip
    lines += [f"| total | {len(named)} | | {len(pairs)} | {_count(named)} |", ""]
    lines += [
        "| pair | compared | unsupported | unique (total) inconsistencies |",
        "|---|---|---|---|",
    ]
    for backends in dict.fromkeys(tuple(each["backends"]) for each in pairs):
        only = [_only(each, backends) for each in named]
        own = [pair for each in only for pair in each["pairs"]]
        refused = sum(each["status"] == "unsupported" for each in own)
        lines.append(
            f"| {' / '.join(backends)} | {len(own) - refused} | {refused} | {_count(only)} |"
        )
    lines += [
        "",
        _TABLE_II,
        "| root | backend | models | pairs | shown by |",
        "|---|---|---|---|---|",
    ]
    for cause in causes(named):
        models = len({each.model for each in cause.found})
        scripts = dict.fromkeys(
            script
            for backend in cause.backend.split(" / ")
            for script in CONFIRMED.get((cause.layer_kind, backend), "").split()
        )
        shown = ", ".join(f"[{each}](bugs/{each})" for each in scripts) or "-"
        lines.append(f"| {cause.status}: {cause.layer_kind or '-'} | {cause.backend} | {models} | "
                     f"{len(cause.found)} | {shown} |")  # fmt: skip
    return "\n".join([*lines, "", _TABLE_III])


def _only(result: dict[str, Any], backends: tuple[str, ...]) -> dict[str, Any]:
    return {**result, "pairs": [each for each in result["pairs"]
                                if tuple(each["backends"]) == backends]}  # fmt: skip


def _seconds_a_pair(results: Sequence[dict[str, Any]]) -> float:
    return float(median(each["processor_seconds"] / len(each["pairs"]) for each in results))


def _count(results: Sequence[dict[str, Any]]) -> str:
    total = sum(len(faults(each)) for each in results)
    return f"{len(unique_inconsistencies(results))} ({total})"


def _range(results: Sequence[dict[str, Any]]) -> str:
    counts = sorted({each["instances"] for each in results})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"

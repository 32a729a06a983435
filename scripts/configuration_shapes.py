"""The operator shapes of public configurations: each is a function of torch with its operands."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from scripts.support_operators import Operand, SupportedOperator
from tapml_targets.errors import InputError

CONFIGURATIONS: Final = Path(__file__).with_name("public_configurations.csv")
ROWS_OF_CACHE: Final = 64


@dataclass(frozen=True)
class Configuration:
    """A row of the table.

    Attributes
    ----------
    name, source
        What it is called, and where its numbers are published.
    hidden, inner, layers, heads, kv_heads, head_size, vocabulary
        Sizes.
    activation
        As ``transformers`` names it.
    gated
        Whether the activation of one product is multiplied by another.
    norm
        ``rms`` or ``layer``.
    """

    name: str
    source: str
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    activation: str
    gated: bool
    norm: str

    def shapes(self) -> tuple[Shape, ...]:
        """The distinct operator shapes of a step."""
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        products = (
            (self.hidden, queries),
            (self.hidden, keys),
            (queries, self.hidden),
            (self.hidden, self.inner),
            (self.inner, self.hidden),
            (self.hidden, self.vocabulary),
        )
        found = [Shape("product", each) for each in products]
        found.append(Shape("embedding", (self.vocabulary, self.hidden)))
        found.append(Shape(f"{self.norm} norm", (self.hidden,)))
        gate = "gated " if self.gated else ""
        found.append(Shape(f"{gate}{self.activation}", (self.inner,)))
        found.append(Shape("attention", (self.heads, self.kv_heads, self.head_size)))
        return tuple(dict.fromkeys(found))


@dataclass(frozen=True)
class Shape:
    """An operator with its extents."""

    operator: str
    extents: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.operator} {' x '.join(map(str, self.extents))}"

    @property
    def weight_bytes(self) -> int:
        """Of its largest operand."""
        if self.operator in ("product", "embedding"):
            return 4 * math.prod(self.extents)
        return 4 * ROWS_OF_CACHE * math.prod(self.extents[1:] or self.extents)

    def as_operator(self) -> SupportedOperator:
        """The function of torch and its operands."""
        made: tuple[Callable[..., Any], tuple[Operand, ...]]
        match self.operator, self.extents:
            case "product", (inner, outer):
                made = functional.linear, (Operand(("n", inner)), Operand((outer, inner)))
            case "embedding", (rows, width):
                made = functional.embedding, (Operand(("n",), "index"), Operand((rows, width)))
            case "attention", (heads, kv_heads, size):
                stored = Operand((kv_heads, ROWS_OF_CACHE, size))
                operands = (Operand((heads, "n", size)), stored, stored)
                made = partial(_attention, heads // kv_heads), operands
            case "rms norm" | "layer norm" as norm, (width,):
                vector = Operand((width,))
                row = Operand(("n", width))
                layer = norm == "layer norm"
                scaled: Any = functional.layer_norm if layer else functional.rms_norm
                made = partial(_norm, scaled, width), (row, vector, vector)[: 3 if layer else 2]
            case operator, (width,):
                row = Operand(("n", width))
                gated = operator.startswith("gated ")
                function = _ACTIVATIONS[operator.removeprefix("gated ")]
                made = (partial(_gated, function), (row, row)) if gated else (function, (row,))
            case _:
                raise AssertionError(self)
        return SupportedOperator(str(self), *made)


def _norm(function: Callable[..., Tensor], width: int, rows: Tensor, *weights: Tensor) -> Tensor:
    return function(rows, (width,), *weights)


def _gated(function: Callable[[Tensor], Tensor], gate: Tensor, up: Tensor) -> Tensor:
    return function(gate) * up


def _attention(group: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Queries ``[heads, n, size]`` on a cache whose rows all are seen."""
    keys, values = (each.repeat_interleave(group, 0) for each in (keys, values))
    scores = queries @ keys.transpose(1, 2) * queries.shape[2] ** -0.5
    return torch.softmax(scores, -1) @ values


_ACTIVATIONS: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_new": partial(functional.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
    "relu2": lambda rows: functional.relu(rows).square(),
}
_SAME: Final = {"gelu_new": "gelu_pytorch_tanh"}


def configurations(path: Path = CONFIGURATIONS) -> list[Configuration]:
    """The rows of the table.

    Raises
    ------
    InputError
        If a row has no such fields; it is named.
    """
    found = []
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            try:
                sizes = {
                    name: int(row[name])
                    for name in (
                        "hidden", "inner", "layers", "heads", "kv_heads", "head_size", "vocabulary"
                    )
                }  # fmt: skip
                activation = _SAME.get(row["activation"], row["activation"])
                if activation not in _ACTIVATIONS or sizes["heads"] % sizes["kv_heads"]:
                    raise ValueError(activation)
                made = Configuration(
                    name=row["name"], source=row["source"], activation=activation,
                    gated=row["feed_forward"] == "gated", norm=row["norm"], **sizes,
                )  # fmt: skip
            except (KeyError, TypeError, ValueError) as error:
                raise InputError(f"{path}: row {row.get('name')!r}: {error}") from error
            found.append(made)
    return found


def shapes_of(rows: Sequence[Configuration]) -> dict[Shape, list[str]]:
    """Every distinct shape with the names that have it: what most have first, then the smallest."""
    found: dict[Shape, list[str]] = {}
    for row in rows:
        for shape in row.shapes():
            found.setdefault(shape, []).append(row.name)
    return dict(sorted(found.items(), key=lambda item: (-len(item[1]), item[0].weight_bytes)))

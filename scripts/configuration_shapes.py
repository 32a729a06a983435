"""The operator shapes of public configurations: functions of torch, their inputs and weights."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from scripts.support_operators import Array
from tapml.execute.arrays import allocate, window
from tapml_targets.errors import InputError

Arrays: TypeAlias = Sequence[Array]

CONFIGURATIONS: Final = Path(__file__).with_name("public_configurations.csv")
ROWS_OF_CACHE: Final = 64
TOKENS: Final = 5
# A prime.
_NUMBERS: Final = 1_000_003


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

    @property
    def inputs(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of what a step gives it: numbers, or places in a table."""
        match self.operator, self.extents:
            case "product", (inner, _):
                return ((TOKENS, inner),)
            case "embedding", _:
                return ((TOKENS,),)
            case "attention", (heads, kv_heads, size):
                stored = (kv_heads, ROWS_OF_CACHE, size)
                return ((heads, TOKENS, size), stored, stored)
            case operator, (width,):
                return ((TOKENS, width),) * (2 if operator.startswith("gated ") else 1)
        raise AssertionError(self)

    @property
    def weights(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of its weights."""
        match self.operator:
            case "product":
                return (self.extents[::-1],)
            case "embedding":
                return (self.extents,)
            case "rms norm":
                return (self.extents,)
            case "layer norm":
                return (self.extents, self.extents)
        return ()

    @property
    def function(self) -> Callable[..., Tensor]:
        """The function of torch, of the inputs and then the weights."""
        match self.operator, self.extents:
            case "product", _:
                return functional.linear
            case "embedding", _:
                return functional.embedding
            case "attention", (heads, kv_heads, _):
                return partial(_attention, heads // kv_heads)
            case "rms norm", (width,):
                return partial(_norm, functional.rms_norm, width)
            case "layer norm", (width,):
                return partial(_norm, functional.layer_norm, width)
            case operator, _ if operator.startswith("gated "):
                return partial(_gated, _ACTIVATIONS[operator.removeprefix("gated ")])
        return _ACTIVATIONS[self.operator]

    def draw_inputs(self) -> list[Array]:
        """Its inputs, the same ones every time.

        The places in a table are anywhere in it, its last row among them.
        """
        if self.operator == "embedding":
            last = self.extents[0] - 1
            return [np.array([last, 0, last // 2, last // 3, last - 1], np.int64)]
        return [numbers(each, at) for at, each in enumerate(self.inputs)]

    def draw_weights(self) -> list[Array]:
        """Its weights, the same ones every time."""
        return [numbers(each, at) for at, each in enumerate(self.weights, len(self.inputs))]

    def parts(
        self, inputs: Arrays, weights: Arrays, outputs: Arrays, nbytes: int
    ) -> Iterator[tuple[Shape, Arrays, Arrays, Arrays]]:
        """Smaller shapes that together compute the same, with their inputs, weights and outputs.

        Those of a product have as many rows of its weight as `nbytes` holds, and the columns of the
        output that these give. An embedding is that of the rows that are picked. Any other shape is
        its own part.
        """
        match self.operator, self.extents:
            case "product", (inner, outer):
                rows = _rows_of_parts(outer, max(1, nbytes // (4 * inner)))
                for start in range(0, outer, rows):
                    weight = weights[0][start : start + rows]
                    output = np.ascontiguousarray(outputs[0][:, start : start + rows])
                    yield Shape("product", (inner, len(weight))), inputs, [weight], [output]
            case "embedding", (_, width):
                places, picked = np.arange(TOKENS, dtype=inputs[0].dtype), weights[0][inputs[0]]
                yield Shape("embedding", (TOKENS, width)), [places], [picked], outputs
            case _:
                yield self, inputs, weights, outputs


def _rows_of_parts(rows: int, most: int) -> int:
    """How many rows a part has: at most so many, and in every part as many where that is near."""
    even = (each for each in range(most, most // 2, -1) if rows % each == 0)
    return next(even, most)


def numbers(shape: tuple[int, ...], position: int) -> Array:
    """Normal numbers in float32, aligned as compiled code takes them.

    Drawing gigabytes takes longer than multiplying them, so a million are drawn and repeated; as
    many as a prime, so that no two rows of a matrix are the same. Operands at other positions of a
    call begin elsewhere.
    """
    drawn = _drawn()
    array: Array = window(allocate(4 * math.prod(shape)), 0, shape, "float32")
    flat, start, done = array.reshape(-1), position * 350_377 % drawn.size, 0
    while done < flat.size:
        part = drawn[start : start + flat.size - done]
        flat[done : done + part.size] = part
        done, start = done + part.size, 0
    return array


@cache
def _drawn() -> Array:
    return np.random.default_rng(17).standard_normal(_NUMBERS, np.float32)


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

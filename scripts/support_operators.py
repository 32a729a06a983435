"""The operators of the support matrix: torch functions, and what each is run on.

They are those that models of language, vision and speech are made of. Every operand has an axis
``n``, which is a number in a static case and a symbol in a dynamic one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

Array: TypeAlias = NDArray[Any]
Extent: TypeAlias = Literal["n"] | int
Kind: TypeAlias = Literal["normal", "positive", "index", "mask"]

WIDTH: Final = 24
ROWS: Final = 11


@dataclass(frozen=True)
class Operand:
    """An input: its shape, in which ``n`` may stand, and what is drawn for it.

    ``normal`` and ``positive`` are floats of the case's dtype, ``index`` int64 below `ROWS`,
    ``mask`` booleans.
    """

    shape: tuple[Extent, ...]
    kind: Kind = "normal"

    def draw(self, generator: np.random.Generator, extent: int, dtype: str) -> Array:
        """An array of the shape with `extent` for ``n``."""
        shape = tuple(extent if each == "n" else each for each in self.shape)
        drawn: Array
        match self.kind:
            case "normal":
                drawn = generator.standard_normal(shape).astype(dtype)
            case "positive":
                drawn = generator.uniform(0.25, 2, shape).astype(dtype)
            case "index":
                drawn = generator.integers(0, ROWS, shape).astype(np.int64)
            case "mask":
                drawn = generator.random(shape) < 0.5
        return drawn

    def dynamic(self, symbol: torch.export.Dim) -> dict[int, torch.export.Dim]:
        """Its axes of any extent, as ``torch.export`` takes them."""
        return {place: symbol for place, each in enumerate(self.shape) if each == "n"}


class Called(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *operands: Tensor) -> Any:
        """What the function gives."""
        return self._function(*operands)


@dataclass(frozen=True)
class SupportedOperator:
    """A row of the matrix: its name, the function, and its operands."""

    name: str
    function: Callable[..., Any]
    operands: tuple[Operand, ...]

    def draw(self, extent: int, dtype: str) -> list[Array]:
        """Inputs with `extent` for ``n``, the same ones every time."""
        generator = np.random.default_rng(17)
        return [each.draw(generator, extent, dtype) for each in self.operands]


_ROWS: Final = Operand(("n", WIDTH))
_POSITIVE: Final = Operand(("n", WIDTH), "positive")
_VECTOR: Final = Operand((WIDTH,))
_MASK: Final = Operand(("n", WIDTH), "mask")
_INDEX: Final = Operand(("n",), "index")
_TABLE: Final = Operand((ROWS, WIDTH))
_IMAGE: Final = Operand(("n", 3, 12, 12))
_SIGNAL: Final = Operand(("n", 3, 16))
_HEADS: Final = Operand((2, "n", 8))


def _rope(states: Tensor, angles: Tensor) -> Tensor:
    first, second = states.chunk(2, -1)
    turned = torch.cat((-second, first), -1)
    return states * angles.cos() + turned * angles.sin()


def _rms_norm(states: Tensor, weight: Tensor) -> Tensor:
    return states * torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + 1e-5) * weight


def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return functional.silu(gate) * up


def _attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return torch.softmax(query @ key.transpose(-1, -2) * 8**-0.5, -1) @ value


OPERATORS: Final = tuple(
    SupportedOperator(name, function, tuple(operands))
    for name, function, *operands in (
        ("abs", torch.abs, _ROWS),
        ("add", torch.add, _ROWS, _ROWS),
        ("add broadcast", torch.add, _ROWS, _VECTOR),
        ("subtract", torch.sub, _ROWS, _ROWS),
        ("multiply", torch.mul, _ROWS, _ROWS),
        ("divide", torch.div, _ROWS, _POSITIVE),
        ("negative", torch.neg, _ROWS),
        ("reciprocal", torch.reciprocal, _POSITIVE),
        ("square", torch.square, _ROWS),
        ("power", torch.pow, _POSITIVE, _ROWS),
        ("square root", torch.sqrt, _POSITIVE),
        ("reciprocal root", torch.rsqrt, _POSITIVE),
        ("exponential", torch.exp, _ROWS),
        ("logarithm", torch.log, _POSITIVE),
        ("sine", torch.sin, _ROWS),
        ("cosine", torch.cos, _ROWS),
        ("error function", torch.erf, _ROWS),
        ("floor", torch.floor, _ROWS),
        ("maximum", torch.maximum, _ROWS, _ROWS),
        ("minimum", torch.minimum, _ROWS, _ROWS),
        ("clamp", lambda x: torch.clamp(x, -0.5, 0.5), _ROWS),
        ("where", torch.where, _MASK, _ROWS, _ROWS),
        ("less than", torch.lt, _ROWS, _ROWS),
        ("relu", torch.relu, _ROWS),
        ("leaky relu", lambda x: functional.leaky_relu(x, 0.1), _ROWS),
        ("sigmoid", torch.sigmoid, _ROWS),
        ("tanh", torch.tanh, _ROWS),
        ("silu", functional.silu, _ROWS),
        ("gelu", functional.gelu, _ROWS),
        ("gelu by tanh", lambda x: functional.gelu(x, approximate="tanh"), _ROWS),
        ("softmax", lambda x: torch.softmax(x, -1), _ROWS),
        ("log softmax", lambda x: torch.log_softmax(x, -1), _ROWS),
        ("sum", lambda x: torch.sum(x, -1), _ROWS),
        ("sum over rows", lambda x: torch.sum(x, 0), _ROWS),
        ("mean", lambda x: torch.mean(x, -1), _ROWS),
        ("largest", lambda x: torch.amax(x, -1), _ROWS),
        ("place of the largest", lambda x: torch.argmax(x, -1), _ROWS),
        ("running sum", lambda x: torch.cumsum(x, -1), _ROWS),
        ("layer norm", lambda x, w: functional.layer_norm(x, (WIDTH,), w), _ROWS, _VECTOR),
        ("rms norm", _rms_norm, _ROWS, _VECTOR),
        ("matrix product", torch.matmul, _ROWS, Operand((WIDTH, 16))),
        ("linear", functional.linear, _ROWS, Operand((16, WIDTH)), Operand((16,))),
        ("matrix by vector", torch.mv, _ROWS, _VECTOR),
        ("batched product", torch.bmm, _HEADS, Operand((2, 8, 16))),
        ("attention", _attention, _HEADS, _HEADS, _HEADS),
        ("rotary embedding", _rope, _HEADS, Operand(("n", 8))),
        ("swiglu", _swiglu, _ROWS, _ROWS),
        ("embedding", functional.embedding, _INDEX, _TABLE),
        ("index select", lambda t, i: torch.index_select(t, 0, i), _TABLE, _INDEX),
        ("concatenate", lambda x, y: torch.cat((x, y), -1), _ROWS, _ROWS),
        ("stack", lambda x, y: torch.stack((x, y), 0), _ROWS, _ROWS),
        ("transpose", lambda x: x.transpose(0, 1).contiguous(), _ROWS),
        ("slice", lambda x: x[:, 3:17].contiguous(), _ROWS),
        ("flip", lambda x: torch.flip(x, (-1,)), _ROWS),
        ("repeat", lambda x: x.repeat(1, 3), _ROWS),
        ("lower triangle", torch.tril, Operand(("n", 12, 12))),
        ("convolution of signals", functional.conv1d, _SIGNAL, Operand((4, 3, 3))),
        ("convolution of images", functional.conv2d, _IMAGE, Operand((4, 3, 3, 3))),
        ("largest of windows", lambda x: functional.max_pool2d(x, 2), _IMAGE),
        ("mean of windows", lambda x: functional.avg_pool2d(x, 2), _IMAGE),
    )
)

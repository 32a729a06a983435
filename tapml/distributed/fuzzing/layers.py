"""The layers of generated networks: where each fits, what it gives, and its source (Muffin's)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

Shape: TypeAlias = tuple[int, ...]
Made: TypeAlias = "tuple[str, Shape] | None"
VECTOR, SEQUENCE, IMAGE = 1, 2, 3
MOST_ELEMENTS: Final = 4096
"""Of one sample's output; a layer that gives more does not fit."""


@dataclass(frozen=True)
class Layer:
    """A kind of layer.

    Attributes
    ----------
    make
        Its source and the shape it gives for a sample's shape and a size; None where it does not
        fit.
    inputs
        How many it takes.
    keeps
        Whether it keeps the shape if its size is the first of the shape (cells are made of such).
    mixes
        Whether a sample's result depends on the other samples, or on chance.
    """

    make: Callable[[Shape, int], Made]
    inputs: int = 1
    keeps: bool = True
    mixes: bool = False


def _same(source: str, *ranks: int) -> Layer:
    """A layer that keeps every shape; `{0}` and `{-1}` stand for the first and last extent."""

    def make(shape: Shape, size: int) -> Made:
        del size
        text = source.replace("{0}", str(shape[0])).replace("{-1}", str(shape[-1]))
        return (text, shape) if not ranks or len(shape) in ranks else None

    return Layer(make)


def _linear(shape: Shape, size: int) -> Made:
    last = size if len(shape) == VECTOR else shape[-1]
    fits = len(shape) in (VECTOR, SEQUENCE)
    return (f"nn.Linear({shape[-1]}, {last})", (*shape[:-1], last)) if fits else None


def _convolution(text: str) -> Callable[[Shape, int], Made]:
    rank = IMAGE if "2d" in text else SEQUENCE

    def make(shape: Shape, size: int) -> Made:
        source = text.replace("IN", str(shape[0])).replace("OUT", str(size))
        return (source, (size, *shape[1:])) if len(shape) == rank else None

    return make


def _depthwise(shape: Shape, size: int) -> Made:
    del size
    channels = shape[0]
    text = f"nn.Conv2d({channels}, {channels}, 3, padding=1, groups={channels})"
    return (text, shape) if len(shape) == IMAGE else None


def _strided(shape: Shape, size: int) -> Made:
    if len(shape) != IMAGE:
        return None
    halves = tuple((each + 1) // 2 for each in shape[1:])
    return f"nn.Conv2d({shape[0]}, {size}, 3, stride=2, padding=1)", (size, *halves)


def _transposed(shape: Shape, size: int) -> Made:
    if len(shape) != IMAGE:
        return None
    doubles = tuple(2 * each for each in shape[1:])
    return f"nn.ConvTranspose2d({shape[0]}, {size}, 2, stride=2)", (size, *doubles)


def _pool(name: str) -> Callable[[Shape, int], Made]:
    def make(shape: Shape, size: int) -> Made:
        del size
        if len(shape) == VECTOR or min(shape[1:]) < 2:
            return None
        rank = len(shape) - 1
        return f"nn.{name}Pool{rank}d(2)", (shape[0], *(each // 2 for each in shape[1:]))

    return make


def _pool_all(shape: Shape, size: int) -> Made:
    del size
    return ("nn.AdaptiveAvgPool2d(1)", (shape[0], 1, 1)) if len(shape) == IMAGE else None


def _upsampled(shape: Shape, size: int) -> Made:
    del size
    doubles = tuple(2 * each for each in shape[1:])
    return ("nn.Upsample(scale_factor=2)", (shape[0], *doubles)) if len(shape) == IMAGE else None


def _padded(shape: Shape, size: int) -> Made:
    del size
    wider = tuple(2 + each for each in shape[1:])
    return ("nn.ZeroPad2d(1)", (shape[0], *wider)) if len(shape) == IMAGE else None


def _flat(shape: Shape, size: int) -> Made:
    del size
    return ("nn.Flatten()", (math.prod(shape),)) if len(shape) > VECTOR else None


def _recurrent(name: str) -> Callable[[Shape, int], Made]:
    def make(shape: Shape, size: int) -> Made:
        del size
        text = f"First(nn.{name}({shape[-1]}, {shape[-1]}, batch_first=True))"
        return (text, shape) if len(shape) == SEQUENCE else None

    return make


def _attention(shape: Shape, size: int) -> Made:
    del size
    return (f"Attend({shape[-1]})", shape) if len(shape) == SEQUENCE else None


def _normalized(shape: Shape, size: int) -> Made:
    del size
    many = len(shape) == IMAGE and math.prod(shape[1:]) > 1
    return (f"nn.InstanceNorm2d({shape[0]}, affine=True)", shape) if many else None


def _batch_normalized(shape: Shape, size: int) -> Made:
    del size
    rank = {VECTOR: 1, SEQUENCE: 1, IMAGE: 2}[len(shape)]
    return f"nn.BatchNorm{rank}d({shape[0]})", shape


def _joined(shape: Shape, size: int) -> Made:
    del size
    return "Concatenate()", (2 * shape[0], *shape[1:])


def _bilinear(shape: Shape, size: int) -> Made:
    width = shape[-1]
    fits = len(shape) == VECTOR and width <= 32
    return (f"nn.Bilinear({width}, {width}, {size})", (size,)) if fits else None


LAYERS: Final[dict[str, Layer]] = {
    "Linear": Layer(_linear),
    "Conv1d": Layer(_convolution("nn.Conv1d(IN, OUT, 3, padding=1)")),
    "Conv2d": Layer(_convolution("nn.Conv2d(IN, OUT, 3, padding=1)")),
    "PointwiseConv2d": Layer(_convolution("nn.Conv2d(IN, OUT, 1, bias=False)")),
    "DepthwiseConv2d": Layer(_depthwise),
    "DilatedConv2d": Layer(_convolution("nn.Conv2d(IN, OUT, 3, padding=2, dilation=2)")),
    "StridedConv2d": Layer(_strided, keeps=False),
    "ConvTranspose2d": Layer(_transposed, keeps=False),
    "MaxPool": Layer(_pool("Max"), keeps=False),
    "AvgPool": Layer(_pool("Avg"), keeps=False),
    "AdaptiveAvgPool2d": Layer(_pool_all, keeps=False),
    "Upsample": Layer(_upsampled, keeps=False),
    "ZeroPad2d": Layer(_padded, keeps=False),
    "Flatten": Layer(_flat, keeps=False),
    "RNN": Layer(_recurrent("RNN")),
    "LSTM": Layer(_recurrent("LSTM")),
    "GRU": Layer(_recurrent("GRU")),
    "MultiheadAttention": Layer(_attention),
    "LayerNorm": _same("nn.LayerNorm({-1})"),
    "RMSNorm": _same("nn.RMSNorm({-1})", VECTOR, SEQUENCE),
    "GroupNorm": _same("nn.GroupNorm(1, {0})"),
    "InstanceNorm2d": Layer(_normalized),
    "LocalResponseNorm": _same("nn.LocalResponseNorm(2)", IMAGE),
    "PReLU": _same("nn.PReLU()"),
    "ReLU": _same("nn.ReLU()"),
    "LeakyReLU": _same("nn.LeakyReLU()"),
    "ELU": _same("nn.ELU()"),
    "GELU": _same("nn.GELU()"),
    "SiLU": _same("nn.SiLU()"),
    "Tanh": _same("nn.Tanh()"),
    "Sigmoid": _same("nn.Sigmoid()"),
    "Softmax": _same("nn.Softmax(1)"),
    "Identity": _same("nn.Identity()"),
    "Add": Layer(lambda shape, size: ("Add()", shape), inputs=2),
    "Multiply": Layer(lambda shape, size: ("Multiply()", shape), inputs=2),
    "Maximum": Layer(lambda shape, size: ("Maximum()", shape), inputs=2),
    "Concatenate": Layer(_joined, inputs=2, keeps=False),
    "Bilinear": Layer(_bilinear, inputs=2, keeps=False),
    "BatchNorm": Layer(_batch_normalized, mixes=True),
    "Dropout": Layer(lambda shape, size: ("nn.Dropout(0.5)", shape), mixes=True),
}

CLASSES: Final[dict[str, str]] = {
    "First": '''class First(nn.Module):
    """The output of a recurrent layer without its state."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]
''',
    "Attend": '''class Attend(nn.Module):
    """Self-attention."""

    def __init__(self, features):
        super().__init__()
        self.layer = nn.MultiheadAttention(features, 1, batch_first=True)

    def forward(self, x):
        return self.layer(x, x, x, need_weights=False)[0]
''',
    "Add": """class Add(nn.Module):
    def forward(self, a, b):
        return a + b
""",
    "Multiply": """class Multiply(nn.Module):
    def forward(self, a, b):
        return a * b
""",
    "Maximum": """class Maximum(nn.Module):
    def forward(self, a, b):
        return torch.maximum(a, b)
""",
    "Concatenate": """class Concatenate(nn.Module):
    def forward(self, a, b):
        return torch.cat([a, b], 1)
""",
}
"""Sources of the classes that layers name besides PyTorch's."""


def fit(layer: Layer, shape: Shape, size: int) -> Made:
    """A layer's source and the shape it gives; None if it does not fit there."""
    made = layer.make(shape, size)
    return made if made is not None and math.prod(made[1]) <= MOST_ELEMENTS else None

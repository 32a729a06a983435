"""How many elements an ATen operation may give, told from its arguments before it runs.

Torch could tell exactly (tensors without memory), but loads half of its compiler for that, which
takes longer than all sub-graphs of a suite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from tapml.graph.torch_subgraph_operations import ELEMENTWISE, KEEPING

Arguments = Sequence[Any]
_PADDING: Final = (
    "constant_pad_nd",
    "pad",
    *(f"reflection_pad{dimensions}d" for dimensions in (1, 2, 3)),
    *(f"replication_pad{dimensions}d" for dimensions in (2, 3)),
)
_MARGIN: Final = 4
"""Pooling pads by at most half of its window on each side."""


def most_elements(name: str, arguments: Arguments) -> int:
    """A bound on the elements of each result of an operation.

    Parameters
    ----------
    name
        Of the packet.
    arguments
        In the order of the overload's schema, or the first of them.

    Raises
    ------
    TypeError, ValueError, IndexError, AttributeError, KeyError
        If the arguments are none the operation takes.
    """
    if name in ELEMENTWISE:
        return math.prod(np.broadcast_shapes(*(t.shape for t in _tensors(arguments))))
    if name in KEEPING:
        operands = sum(int(tensor.numel()) for tensor in _tensors(arguments))
        return _MARGIN * operands + 1
    return int(RULES[name](arguments))


def _tensors(arguments: Any) -> list[Any]:
    if isinstance(arguments, list | tuple):
        return [tensor for each in arguments for tensor in _tensors(each)]
    return [arguments] if hasattr(arguments, "numel") else []


def _integers(arguments: Any) -> list[int]:
    if isinstance(arguments, list | tuple):
        return [number for each in arguments for number in _integers(each)]
    return [abs(arguments)] if type(arguments) is int else []


def _product(left: Any, right: Any) -> int:
    """A (batched) matrix product; vectors are matrices of one row."""
    batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    rows = left.shape[-2] if left.ndim > 1 else 1
    columns = right.shape[-1] if right.ndim > 1 else 1
    return int(math.prod(batch) * rows * columns)


def _convolution(a: Arguments) -> int:
    x, weight = a[0], a[1]
    spatial = zip(x.shape[2:], weight.shape[2:], strict=True)
    reach = max(_integers([a[3], a[4], a[5], a[7]]), default=1) + 1
    outputs = weight.shape[1] * a[8] if a[6] else weight.shape[0]
    extents = [
        (extent + 2 * reach) * (reach if a[6] else 1) + kernel * reach for extent, kernel in spatial
    ]
    return int(x.shape[0] * outputs * math.prod(extents))


def _expanded(a: Arguments) -> int:
    own = a[0].shape
    sizes = list(a[1])
    own = [1] * (len(sizes) - len(own)) + list(own)
    return math.prod(o if size == -1 else abs(size) for o, size in zip(own, sizes, strict=True))


def _padded(a: Arguments) -> int:
    widest = max(_integers(a[1]), default=0)
    extents: list[int] = [extent + 2 * widest for extent in a[0].shape]
    return math.prod(extents)


def _indexed(a: Arguments) -> int:
    indices = [index for index in a[1] if index is not None]
    chosen = math.prod(np.broadcast_shapes(*(index.shape for index in indices)))
    others = [
        extent
        for axis, extent in enumerate(a[0].shape)
        if axis >= len(a[1]) or a[1][axis] is None or a[1][axis].ndim == 0
    ]
    return int(chosen * math.prod(others))


def _resampled(a: Arguments) -> int:
    x, sizes = a[0], a[1]
    if sizes:
        return int(math.prod(x.shape[:2]) * math.prod(_integers(sizes)))
    factors = a[-1] or []
    return int(x.numel() * math.prod(max(1.0, abs(float(each))) for each in factors)) + 1


def _counted(a: Arguments) -> int:
    """``arange``: end; start, end; start, end, step."""
    numbers = [each for each in a if type(each) in (int, float)]
    start, end = (0, numbers[0]) if len(numbers) == 1 else numbers[:2]
    step = numbers[2] if len(numbers) > 2 else 1
    return int(abs((end - start) / step)) + 2


def _made(a: Arguments) -> int:
    return math.prod(_integers([each for each in a if isinstance(each, list)]))


RULES: Final[Mapping[str, Callable[[Arguments], int]]] = {
    **dict.fromkeys(("mm", "bmm", "matmul", "mv", "dot"), lambda a: _product(a[0], a[1])),
    **dict.fromkeys(
        ("addmm", "addmv", "baddbmm", "addbmm"), lambda a: a[0].numel() + _product(a[1], a[2])
    ),
    "linear": lambda a: math.prod(a[0].shape[:-1]) * math.prod(a[1].shape[:-1]),
    "outer": lambda a: a[0].numel() * a[1].numel(),
    "scaled_dot_product_attention": lambda a: (
        _product(a[0], a[1].transpose(-1, -2)) + a[0].numel() * a[2].shape[-1]
    ),
    "convolution": _convolution,
    **dict.fromkeys(("expand", "broadcast_to"), _expanded),
    "expand_as": lambda a: a[1].numel(),
    **dict.fromkeys(("repeat", "tile"), lambda a: a[0].numel() * math.prod(_integers(a[1]))),
    **dict.fromkeys(_PADDING, _padded),
    "embedding": lambda a: a[1].numel() * math.prod(a[0].shape[1:]),
    "gather": lambda a: a[2].numel(),
    "take": lambda a: a[1].numel(),
    "index": _indexed,
    "index_select": lambda a: a[0].numel() // max(1, a[0].shape[a[1]]) * a[2].numel(),
    **dict.fromkeys(
        ("upsample_bilinear2d", "upsample_bicubic2d", "upsample_nearest2d"), _resampled
    ),
    "arange": _counted,
    "linspace": lambda a: int(a[2]),
    "eye": lambda a: max(_integers(a)) ** 2,
    **dict.fromkeys(("full", "new_full", "new_ones", "new_zeros", "ones", "zeros"), _made),
}
"""Of every operation in ``GROWING``."""

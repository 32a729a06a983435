"""The further faults, in operators of ONNX's reference implementation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

Run = Callable[..., Any]


def _set(**attributes: Any) -> Run:
    """Attributes that are read as these, whatever the node says."""
    return lambda right, *values, **named: right(*values, **{**named, **attributes})


def _dilation(right: Run, x: Any, kernel: Any, *bias: Any, **named: Any) -> Any:
    """With the padding that gives the same shape."""
    dilations = named.get("dilations") or [1] * (x.ndim - 2)
    less = [(d - 1) * (k - 1) // 2 for d, k in zip(dilations, kernel.shape[2:], strict=True)]
    pads = named.get("pads") or [0] * 2 * len(less)
    pads = [each - by for each, by in zip(pads, less * 2, strict=True)]
    if max(less, default=0) == 0 or min(pads) < 0:
        return right(x, kernel, *bias, **named)
    return right(x, kernel, *bias, **{**named, "dilations": [1] * len(less), "pads": pads})


def _ceil_mode(right: Run, x: Any, **named: Any) -> Any:
    whole = right(x, **named)[0]
    found = right(x, **{**named, "ceil_mode": 0})[0]
    for axis in range(2, x.ndim):
        places = np.arange(whole.shape[axis]).clip(max=found.shape[axis] - 1)
        found = np.take(found, places, axis)
    return (found,)


def _softmax_axis(right: Run, x: Any, axis: Any = None) -> Any:
    return right(x, axis=(-1 if axis is None else axis) % x.ndim - 1)


def _gates(right: Run, x: Any, weights: Any, states: Any, bias: Any = None, *rest: Any,
           hidden_size: Any = None, **named: Any) -> Any:  # fmt: skip
    def exchanged(each: Any, halves: int = 1) -> Any:
        parts = np.split(each, each.shape[1] // hidden_size, axis=1)
        per = len(parts) // halves
        for start in range(0, len(parts), per):
            parts[start], parts[start + 1] = parts[start + 1], parts[start]
        return np.concatenate(parts, axis=1)

    bias = None if bias is None else exchanged(bias, 2)
    return right(x, exchanged(weights), exchanged(states), bias, *rest,
                 hidden_size=hidden_size, **named)  # fmt: skip


def _recurrent_bias(right: Run, x: Any, weights: Any, states: Any, bias: Any = None,
                    *rest: Any, **named: Any) -> Any:  # fmt: skip
    if bias is not None:
        bias = bias.copy()
        bias[:, bias.shape[1] // 2 :] = 0
    return right(x, weights, states, bias, *rest, **named)


def _of_floats(wrong: Run) -> Run:
    """Shapes are joined and moved by the same operators: these stay right."""
    return lambda right, *values, **named: (
        wrong
        if values[0].dtype.kind == "f" and values[0].ndim > 1
        else lambda r, *v, **n: r(*v, **n)
    )(right, *values, **named)


def _row_off(right: Run, table: Any, rows: Any, axis: Any = None) -> Any:
    extent = table.shape[axis or 0]
    return right(table, (np.asarray(rows) + 1) % extent, axis=axis)


def _pixel_order(right: Run, x: Any, **named: Any) -> Any:
    # Both orders are ONNX's: DCR and CRD.
    return right(x, **{**named, "mode": "DCR" if named.get("mode") == "CRD" else "CRD"})


def _pad_edge(right: Run, *values: Any, mode: Any = None, **named: Any) -> Any:
    return right(*values, mode="edge" if mode == "reflect" else mode, **named)


def _transposed_square(right: Run, x: Any, perm: Any = None) -> Any:
    found = right(x, perm=perm)[0]
    return (x.copy() if found.shape == x.shape else found,)


def _brain(x: Any) -> Any:
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x8000) & 0xFFFF0000).view(np.float32)


def _nan(right: Run, x: Any) -> Any:
    found = right(x)[0]
    return (np.where(x == x.max(), np.float32(np.nan), found).astype(found.dtype),)


def _sizes_with_batch(right: Run, x: Any, roi: Any = None, scales: Any = None, sizes: Any = None,
                      **named: Any) -> Any:  # fmt: skip
    longer = [
        each if each is None else np.concatenate([each[:1], each]) for each in (scales, sizes)
    ]
    return right(x, roi, *longer, **named)


FAULTS: Final[dict[str, Run]] = {
    "dilation": _dilation,
    "convolution-bias": lambda right, x, kernel, *_, **named: right(x, kernel, **named),
    "transposed-mirrored": lambda right, x, kernel, *bias, **named: right(
        x, np.flip(kernel, tuple(range(2, kernel.ndim))).copy(), *bias, **named),
    "ceil-mode": _ceil_mode,
    "pool-count": _set(count_include_pad=0),
    "norm-large-epsilon": _set(epsilon=0.1),
    "norm-bias": lambda right, x, gain, bias, *rest, **named: right(
        x, gain, np.zeros_like(bias), *rest, **named),
    "softmax-axis": _softmax_axis,
    "slope": _set(alpha=0.01),
    "slope-shared": lambda right, x, slope: right(
        x, np.full_like(slope, slope.ravel()[0])),
    "elu-alpha": _set(alpha=1.0),
    "approximation": lambda right, x: (np.tanh(x * np.float32(1.1284)).astype(x.dtype),),
    "softplus-threshold": lambda right, x: (np.where(x > 0, x, right(x)[0]),),
    "clip-upper": lambda right, x, *bounds: right(x, *bounds[:1]),
    "gates": _gates,
    "recurrent-bias": _recurrent_bias,
    "row-off": _of_floats(_row_off),
    "running-sum": _set(exclusive=1),
    "corners": _set(coordinate_transformation_mode="align_corners"),
    "pixel-order": _pixel_order,
    "pad-edge": _pad_edge,
    "joined-backwards": _of_floats(lambda right, *parts, **named: right(*parts[::-1], **named)),
    "logarithm-shift": lambda right, x, *axes, **named: right(np.abs(x), *axes, **named),
    "einsum-swapped": lambda right, one, other, **named: right(one, other[:, ::-1], **named),
    "smallest": _set(largest=0),
    "exponent": lambda right, x, power: right(x, np.trunc(power)),
    "transposed-square": _of_floats(_transposed_square),
    "brain-float": lambda right, x, kernel, *bias, **named: right(
        _brain(x), _brain(kernel), *bias, **named),
    "product-nan": _nan,
    "fused-activation": lambda right, x, *_, **__: (x.copy(),),
    "fused-bias": lambda right, x, kernel, *_, **named: right(x, kernel, **named),
    "crash-recurrent": lambda right, x, weights, states, *rest, **named: right(
        x, weights, np.swapaxes(states, 1, 2), *rest, **named),
    "crash-interpolation": _sizes_with_batch,
}  # fmt: skip

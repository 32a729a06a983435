"""Faults of whole numbers of 8 bits, in operators of ONNX's reference implementation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

Run = Callable[..., Any]


def _first_scale(right: Run, *values: Any, **named: Any) -> Any:
    """Of weights: the second operand's scale, or that of codes with one for each channel."""
    given = list(values)
    place = 4 if len(given) > 3 else 1
    given[place] = np.full_like(given[place], np.ravel(given[place])[0])
    return right(*given, **named)


def _wrapped(right: Run, x: Any, scale: Any, zero: Any, **named: Any) -> Any:
    del right, named
    return ((np.rint(x / scale).astype(np.int64) + zero).astype(zero.dtype),)


FAULTS: Final[dict[str, Run]] = {
    "codes-zero": lambda right, x, scale, zero, *rest, **named: right(
        x, scale, np.zeros_like(zero), *rest, **named),
    "codes-cut": lambda right, x, scale, *rest, **named: right(
        (np.trunc(x / scale) * scale).astype(x.dtype), scale, *rest, **named),
    "codes-wrapped": _wrapped,
    "codes-scale": _first_scale,
    "codes-bias": lambda right, *values, **named: right(*values[:8], **named),
}  # fmt: skip

"""Realistic mistakes of kernels, made by changing the inputs of a right one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Damage = Callable[[Sequence[Array]], list[Array]]


def shift(position: int, axis: int = -1) -> Damage:
    """Index shifted by one in an input."""
    return lambda xs: [np.roll(x, 1, axis) if i == position else x for i, x in enumerate(xs)]


def lose(position: int, axis: int = -1, at: int = -1) -> Damage:
    """A term left out of a sum."""

    def damage(xs: Sequence[Array]) -> list[Array]:
        copy = xs[position].copy()
        np.moveaxis(copy, axis, -1)[..., at] = 0
        return [copy if i == position else x for i, x in enumerate(xs)]

    return damage


def mask(position: int, at: int = -1) -> Damage:
    """A term left out of a softmax: the largest negative number in its place."""

    def damage(xs: Sequence[Array]) -> list[Array]:
        copy = xs[position].copy()
        # The bits of a number below -6e4 in each of the dtypes (bfloat16 travels as uint16).
        copy[..., at] = 0xC77F if copy.dtype == np.uint16 else -60000.0
        return [copy if i == position else x for i, x in enumerate(xs)]

    return damage


def swap(first: int, second: int) -> Damage:
    """Two arguments of one shape exchanged."""

    def damage(xs: Sequence[Array]) -> list[Array]:
        changed = list(xs)
        changed[first], changed[second] = xs[second], xs[first]
        return changed

    return damage


def transpose(position: int) -> Damage:
    """A square weight read the wrong way round."""
    return lambda xs: [np.ascontiguousarray(x.T) if i == position else x for i, x in enumerate(xs)]

"""Small whole numbers laid out over tensors so that every term of every sum counts somewhere.

A *full* tensor has no zero. A *sparse* one is zero but where a sum of its indices, each with a
factor of its own, is a multiple of a prime: along any axis, and for every position of it, there is
a number within one period of any other axis. So the terms that one element of a product leaves
out, another one takes, and each sum is short enough to be exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from tapml.compare.formats import Float64s

PERIODS: Final = (1, 2, 3, 5, 7, 11, 17, 31, 61, 127, 251, 509, 1021, 2039)
"""Primes (and one), in rough doublings: one number of so many is not zero."""


def full(shape: Sequence[int], largest: int, generator: np.random.Generator) -> Float64s:
    """Whole numbers from 1 to `largest` with random signs."""
    sizes = generator.integers(1, largest + 1, tuple(shape))
    signs = generator.integers(0, 2, tuple(shape)) * 2 - 1
    numbers: Float64s = (sizes * signs).astype(np.float64)
    return numbers


def sparse(
    shape: Sequence[int], largest: int, period: int, offset: int, generator: np.random.Generator
) -> Float64s:
    """The same, zero but for one number in `period` along each axis, from `offset` on."""
    numbers = full(shape, largest, generator)
    place = np.full((1,) * len(shape), offset % period, np.int64)
    for axis, extent in enumerate(shape):
        # A factor that the prime does not divide.
        factor = 1 + axis % max(1, period - 1)
        steps = np.arange(extent, dtype=np.int64) * factor
        place = place + steps.reshape([extent if i == axis else 1 for i in range(len(shape))])
    kept: Float64s = np.where(place % period == 0, numbers, 0.0)
    return kept

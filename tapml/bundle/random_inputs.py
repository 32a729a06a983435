"""Random numbers that resemble a model's without containing any of them.

They preserve a tensor's shape, dtype, sign, a power of two for its scale, its offset and its
largest magnitude, and the shares of zeros, Inf and NaN in percent. Positions of these are preserved
only by some strategies, and never for a weight. Integers stay within their range, so that indices
stay valid; increasing sequences stay increasing, and distinct values stay distinct.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tapml.reduce.values import encode
from tapml_targets.dtype import dtype as lookup
from tapml_targets.float_formats import Float64s, as_float64

Array = NDArray[Any]
Shape: TypeAlias = Literal["normal", "uniform", "large", "extremes"]

# Fewer values than this give no statistics: only their magnitude is kept.
_FEW: Final = 16


@dataclass(frozen=True)
class Strategy:
    """A way to draw numbers.

    Attributes
    ----------
    shape
        ``normal``; ``uniform`` between the bounds; ``large``, half to all of the largest magnitude;
        ``extremes``, the largest and the smallest magnitudes mixed.
    same_places
        Whether zeros, Inf and NaN of tensors other than weights keep their positions.
    seed
        Seed of the random numbers.
    """

    shape: Shape
    same_places: bool
    seed: int

    def __str__(self) -> str:
        places = ", zeros, Inf and NaN in their places" if self.same_places else ""
        return f"{self.shape}{places}, seed {self.seed}"


STRATEGIES: Final = (
    *(Strategy("normal", False, seed) for seed in range(3)),
    *(Strategy(shape, False, 0) for shape in ("uniform", "large", "extremes")),
    *(Strategy("normal", True, seed) for seed in range(3)),
    *(Strategy(shape, True, 0) for shape in ("uniform", "large", "extremes")),
)
"""In the order in which they are tried: those that preserve least come first."""


def random_like(
    raw: Array, dtype: str, lifetime: str, strategy: Strategy, generator: np.random.Generator
) -> Array:
    """A random tensor like `raw`: raw elements of the same shape and dtype.

    Parameters
    ----------
    raw, dtype
        The tensor and the name of its dtype.
    lifetime
        For a ``weight`` no positions are preserved.
    strategy, generator
        Draw the numbers.
    """
    if not raw.size:
        return raw.copy()
    if lookup(dtype).packing > 1:
        return generator.integers(0, 256, raw.shape, np.uint8)
    if not lookup(dtype).is_float:
        return _integers(raw, generator)
    values = as_float64(raw, dtype)
    keep = strategy.same_places and lifetime != "weight"
    drawn = _draw(values, strategy.shape, generator)
    with np.errstate(all="ignore"):
        special = _special(values, dtype)
    for value in special:
        where = _equal(values, value)
        if not keep:
            where = generator.random(values.shape) < _percent(where)
        drawn[where] = value
    return encode(drawn, dtype)


def _integers(raw: Array, generator: np.random.Generator) -> Array:
    if raw.dtype.kind == "b":
        return generator.random(raw.shape) < _percent(raw)
    low, high = min(0, int(raw.min())), int(raw.max())
    span = high - low + 1
    if raw.size > 1 and len(np.unique(raw)) == raw.size and span < 1 << 62:
        if bool((np.diff(raw.reshape(-1).astype(np.int64)) == 1).all()):
            # A range of positions reveals only its start.
            start = int(generator.integers(low, high - raw.size + 2))
            return np.arange(start, start + raw.size).astype(raw.dtype).reshape(raw.shape)
        chosen = low + generator.choice(span, raw.size, replace=False)
        increasing = bool((raw.reshape(-1)[1:] > raw.reshape(-1)[:-1]).all())
        ordered = np.sort(chosen) if increasing else chosen
        return ordered.astype(raw.dtype).reshape(raw.shape)
    return generator.integers(low, high, raw.shape, raw.dtype, endpoint=True)


def _special(values: Float64s, dtype: str) -> list[float]:
    """Values with a meaning: zero, NaN, Inf, and the largest number, which masks use."""
    present = [value for value in (0.0, np.inf, -np.inf, np.nan) if _equal(values, value).any()]
    largest = float(ml_dtypes.finfo(dtype).max)
    present += [value for value in (largest, -largest) if (values == value).any()]
    return present


def _equal(values: Float64s, value: float) -> NDArray[np.bool_]:
    return np.isnan(values) if np.isnan(value) else values == value


def _percent(where: Array) -> float:
    return float(np.round(np.mean(where), 2))


def _draw(values: Float64s, shape: Shape, generator: np.random.Generator) -> Float64s:
    """Random numbers with the sign and, to a power of two, the magnitude of the ordinary values."""
    with np.errstate(all="ignore"):
        ordinary = values[np.isfinite(values) & (values != 0) & (np.abs(values) < 1e30)]
    if not ordinary.size:
        return np.zeros(values.shape)
    magnitudes = np.abs(ordinary)
    most = _power(float(magnitudes.max()), up=True)
    least = _power(float(magnitudes.min()))
    scale, offset = _power(float(np.sqrt(np.mean(np.square(ordinary))))), 0.0
    mean, deviation = float(ordinary.mean()), float(ordinary.std())
    if ordinary.size >= _FEW and abs(mean) > 2 * deviation > 0:
        scale, offset = _power(deviation), float(np.copysign(_power(abs(mean)), mean))
    signs = np.where(generator.random(values.shape) < 0.5, -1.0, 1.0)
    if shape == "normal":
        drawn = offset + scale * generator.standard_normal(values.shape)
    elif shape == "uniform":
        drawn = generator.uniform(-most, most, values.shape)
    elif shape == "large":
        drawn = signs * generator.uniform(most / 2, most, values.shape)
    else:
        sizes = np.where(generator.random(values.shape) < 0.5, most, least)
        drawn = signs * sizes * generator.uniform(0.5, 1.0, values.shape)
    drawn = np.clip(drawn, -most, most)
    if (ordinary > 0).all():
        return np.asarray(np.abs(drawn))
    return np.asarray(-np.abs(drawn)) if (ordinary < 0).all() else np.asarray(drawn)


def _power(magnitude: float, *, up: bool = False) -> float:
    """The power of two nearest to `magnitude`, or the next one above it."""
    exponent = np.log2(magnitude)
    return float(2.0 ** (np.ceil(exponent) if up else np.round(exponent)))

"""Floating-point formats as data, and raw bits of any dtype as float64.

A target's outputs arrive as raw bits, bfloat16 as uint16. Every comparison happens in float64,
which holds each of these formats exactly, so no numpy extension type is needed on a device.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tapml_targets.dtype import dtype as lookup
from tapml_targets.errors import InputError

Float64s = NDArray[np.float64]
NO_SIZE: Final = 1e30
"""Numbers from here on are masks (-3e38) and no size of anything."""
_EXPONENT_BITS: Final = np.int64(0x7FF)
_DOUBLE_BIAS: Final = 1023
_DOUBLE_MANTISSA: Final = 52


@dataclass(frozen=True)
class FloatFormat:
    """One binary floating-point format.

    Attributes
    ----------
    mantissa_bits
        Explicitly stored bits of the significand.
    min_exponent
        Exponent of the smallest normal number.
    max_finite
        Largest finite value.
    has_infinity
        Whether overflow gives Inf (float8_e4m3fn has none).
    """

    mantissa_bits: int
    min_exponent: int
    max_finite: float
    has_infinity: bool = True

    @property
    def epsilon(self) -> float:
        """Distance from one to the next larger value."""
        return 2.0**-self.mantissa_bits

    @property
    def smallest_normal(self) -> float:
        """Smallest positive value held with full precision."""
        return 2.0**self.min_exponent


_FORMATS: Final = {
    "float64": FloatFormat(52, -1022, float(np.finfo(np.float64).max)),
    "float32": FloatFormat(23, -126, float(np.finfo(np.float32).max)),
    "float16": FloatFormat(10, -14, 65504.0),
    "bfloat16": FloatFormat(7, -126, 3.3895313892515355e38),
    "float8_e4m3fn": FloatFormat(3, -6, 448.0, has_infinity=False),
    "float8_e5m2": FloatFormat(2, -14, 57344.0),
}


def float_format(name: str) -> FloatFormat:
    """Format of the floating-point dtype `name`.

    Raises
    ------
    InputError
        If `name` is not a floating-point dtype that verdicts support.
    """
    try:
        return _FORMATS[name]
    except KeyError:
        known = ", ".join(_FORMATS)
        raise InputError(f"no floating-point format {name!r}; known ones: {known}") from None


def as_float64(raw: NDArray[Any], name: str) -> Float64s:
    """Values of `raw`, which holds the raw bits of dtype `name`, as float64 of the same shape.

    Integers and booleans convert by value; beyond 2**53 they round, so compare those as integers.

    Raises
    ------
    InputError
        If `raw` does not have the numpy dtype that carries `name`.
    """
    expected = np.dtype(lookup(name).numpy_name)
    if raw.dtype != expected:
        raise InputError(f"a {name} tensor travels as numpy {expected}, got {raw.dtype}")
    if name.startswith("float8"):
        return np.take(_byte_values(name), raw)
    if name == "bfloat16":
        raw = np.left_shift(raw, 16, dtype=np.uint32).view(np.float32)
    # A signalling NaN is as good as any other here.
    with np.errstate(invalid="ignore"):
        values: Float64s = raw.astype(np.float64)
    return values


@cache
def _byte_values(name: str) -> Float64s:
    """The 256 values of an 8-bit format, by bit pattern."""
    layout = _FORMATS[name]
    codes = np.arange(256)
    exponent_bits = 7 - layout.mantissa_bits
    mantissa = codes & ((1 << layout.mantissa_bits) - 1)
    exponent = (codes >> layout.mantissa_bits) & ((1 << exponent_bits) - 1)
    fraction = mantissa / (1 << layout.mantissa_bits)
    values = np.where(
        exponent == 0,
        np.ldexp(fraction, layout.min_exponent),
        np.ldexp(1.0 + fraction, exponent - 1 + layout.min_exponent),
    )
    if layout.has_infinity:
        top = exponent == (1 << exponent_bits) - 1
        values[top & (mantissa == 0)] = np.inf
        values[top & (mantissa != 0)] = np.nan
    else:
        values[(codes & 0x7F) == 0x7F] = np.nan
    result: Float64s = np.where(codes & 0x80, -values, values)
    return result


def ulp(values: Float64s, name: str) -> Float64s:
    """Unit in the last place of format `name` at each of `values`, same shape.

    The binade is clamped to the format: subnormals share the smallest normal's unit, and values
    beyond the largest finite one (NaN and Inf too) have the unit of the last binade.
    """
    layout = float_format(name)
    bits = np.asarray(values, dtype=np.float64, order="C").view(np.int64)
    # numpy makes numbers of arrays without dimensions.
    exponent = np.asarray((bits >> _DOUBLE_MANTISSA) & _EXPONENT_BITS)
    last = int(np.frexp(layout.max_finite)[1]) - 1 + _DOUBLE_BIAS
    # float64's own subnormals have biased exponent 0 and a unit below any normal: stay at 1.
    lowest = max(layout.min_exponent + _DOUBLE_BIAS, layout.mantissa_bits + 1)
    np.clip(exponent, lowest, last, out=exponent)
    exponent -= layout.mantissa_bits
    exponent <<= _DOUBLE_MANTISSA
    return exponent.view(np.float64)


def movable_ulp(values: Float64s, name: str) -> Float64s:
    """Unit in the last place of each element; zero for elements that are not perturbed.

    Zeros stay (a mask, an empty cache slot, a first position is exact), and so do NaN and Inf.
    """
    unit = ulp(values, name)
    unit[(values == 0) | ~np.isfinite(values)] = 0.0
    return unit

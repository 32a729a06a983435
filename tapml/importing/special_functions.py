"""Special functions of PyTorch from elementary ones, for which TVM has no converter.

Gamma functions are Stirling's series behind eight steps of their recurrences. The others are
polynomials through Chebyshev's places, fitted here in float64. Each is as precise as float32; what
is narrower is computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from statistics import NormalDist
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from tapml_targets.errors import UnsupportedOperatorError

_aten: Final = torch.ops.aten
_STEPS: Final = 8
# Of Bernoulli, from the second on: every other one.
_NUMBERS: Final = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)
_HIGHEST_ORDER: Final = 6


def special_functions() -> dict[Any, Callable[..., Any]]:
    """The functions by their operation."""
    return {
        _aten.lgamma.default: _widened(_log_gamma),
        _aten.digamma.default: _widened(_digamma),
        _aten.polygamma.default: lambda order, x: _widened(_polygamma)(x, order),
        _aten.erfc.default: _widened(_complement),
        _aten.special_erfcx.default: _widened(_scaled_complement),
        _aten.erfinv.default: _widened(_inverse_error),
        _aten.special_ndtri.default: _widened(_quantile),
        _aten.i0.default: _widened(lambda x: _bessel(x, 0) * torch.exp(x.abs())),
        _aten.special_i0e.default: _widened(lambda x: _bessel(x, 0)),
        _aten.special_i1.default: _widened(lambda x: _bessel(x, 1) * torch.exp(x.abs())),
        _aten.special_i1e.default: _widened(lambda x: _bessel(x, 1)),
        _aten.special_zeta.default: _of_two(_hurwitz),
        _aten.special_zeta.self_scalar: _of_two(_hurwitz),
        _aten.special_zeta.other_scalar: _of_two(_hurwitz),
        _aten.special_gammainc.default: _of_two(lambda a, x: _share_of_gamma(a, x)[0]),
        _aten.special_gammaincc.default: _of_two(lambda a, x: _share_of_gamma(a, x)[1]),
        _aten.igamma.default: _of_two(lambda a, x: _share_of_gamma(a, x)[0]),
        _aten.igammac.default: _of_two(lambda a, x: _share_of_gamma(a, x)[1]),
        _aten.angle.default: _angle,
        _aten.log1p.default: _widened(_log_of_one_more),
        _aten.expm1.default: _widened(_power_less_one),
        _aten.softplus.default: _widened(_softplus),
    }


def _widened(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Of integers in the default dtype, of what is narrow in float32."""

    def compute(operand: Tensor, *rest: Any) -> Tensor:
        kind = operand.dtype
        result = kind if kind.is_floating_point else torch.get_default_dtype()
        wide = torch.float32 if result.itemsize == 2 else result
        return function(operand.to(wide), *rest).to(result)

    return compute


def _of_two(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    """The same of two operands, of which one may be a number."""

    def compute(one: Any, other: Any) -> Tensor:
        kind = torch.result_type(one, other)
        result = kind if kind.is_floating_point else torch.get_default_dtype()
        wide = torch.float32 if result.itemsize == 2 else result
        given = [
            each.to(wide) if isinstance(each, Tensor) else torch.full((), each, dtype=wide)
            for each in (one, other)
        ]
        return function(*given).to(result)

    return compute


def _log_of_one_more(operand: Tensor) -> Tensor:
    """A series around zero, where the sum has lost the operand's digits."""
    part = operand / (operand + 2)
    terms = [2 / (2 * k + 1) for k in range(_terms(operand, 6, 14))]
    near = part * _polynomial(terms, part * part)
    return torch.where((operand > -0.4) & (operand < 0.6), near, torch.log(operand + 1))


def _power_less_one(operand: Tensor) -> Tensor:
    terms = [1 / math.factorial(k) for k in range(1, _terms(operand, 10, 17))]
    near = operand * _polynomial(terms, operand)
    return torch.where(operand.abs() < 0.5, near, torch.exp(operand) - 1)


def _softplus(operand: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    scaled = operand * beta
    found = _log_of_one_more(torch.exp(scaled)) / beta
    return torch.where(scaled > threshold, operand, found)


def _terms(operand: Tensor, single: int, double: int) -> int:
    """How many terms of a series a dtype has digits for."""
    return double if operand.dtype == torch.float64 else single


def _log_gamma(operand: Tensor) -> Tensor:
    reflected = torch.where(operand < 0.5, 1 - operand, operand)
    small = reflected < _STEPS
    shifted = torch.where(small, reflected + _STEPS, reflected)
    product: Any = reflected
    for step in range(1, _STEPS):
        product = product * (reflected + step)
    square = 1 / (shifted * shifted)
    terms = [b / (2 * k * (2 * k - 1)) for k, b in enumerate(_NUMBERS, 1)]
    found = (shifted - 0.5) * (torch.log(shifted) - 1) + (0.5 * math.log(2 * math.pi) - 0.5)
    found = found + _polynomial(terms, square) / shifted
    found = found - torch.log(torch.where(small, product, torch.ones_like(product)))
    near = (reflected - 1) * (reflected - 2)
    near = near * _polynomial(_log_gamma_series(), (reflected - _CENTRE) / (_CENTRE - 0.5))
    found = torch.where(reflected < 2 * _CENTRE - 0.5, near, found)
    sine = torch.sin(math.pi * (operand - torch.round(operand)).abs())
    below = math.log(math.pi) - torch.log(sine) - found
    below = torch.where(torch.isinf(operand), operand.abs(), below)
    return torch.where(operand < 0.5, below, found)


# Of the arguments around the zeros at 1 and 2, from 0.5 on.
_CENTRE: Final = 2.25


@cache
def _log_gamma_series() -> list[float]:
    """Of what is left beside the zeros at 1 and 2."""

    def value(place: float) -> float:
        x = _CENTRE + place * (_CENTRE - 0.5)
        return math.lgamma(x) / ((x - 1) * (x - 2))

    return _fitted(value, 26)


def _digamma(operand: Tensor) -> Tensor:
    reflected = torch.where(operand < 0, 1 - operand, operand)
    small = reflected < _STEPS
    shifted = torch.where(small, reflected + _STEPS, reflected)
    before: Any = 1 / reflected
    for step in range(1, _STEPS):
        before = before + 1 / (reflected + step)
    square = 1 / (shifted * shifted)
    terms = [b / (2 * k) for k, b in enumerate(_NUMBERS, 1)]
    found = torch.log(shifted) - 0.5 / shifted - square * _polynomial(terms, square)
    found = found - torch.where(small, before, torch.zeros_like(before))
    rest = operand - torch.round(operand)
    below = found - math.pi / torch.tan(math.pi * rest)
    whole = torch.full_like(below, math.nan)
    return torch.where(operand < 0, torch.where(rest == 0, whole, below), found)


def _polygamma(operand: Tensor, order: int) -> Tensor:
    if order == 0:
        return _digamma(operand)
    if order > _HIGHEST_ORDER:
        raise UnsupportedOperatorError(
            f"polygamma of order {order} is not imported: orders go to {_HIGHEST_ORDER}"
        )
    reflected = torch.where(operand < 0, 1 - operand, operand)
    size = math.factorial(order) * _zeta(reflected, order + 1)
    cotangent = 1 / torch.tan(math.pi * (operand - torch.round(operand)))
    slope = math.pi ** (order + 1) * _polynomial(_slope_of_cotangent(order), cotangent)
    return torch.where(operand < 0, -size - slope, size if order % 2 else -size)


def _slope_of_cotangent(order: int) -> list[float]:
    """Coefficients of a derivative of the cotangent, as a polynomial of the cotangent."""
    slope = np.polynomial.Polynomial([0.0, 1.0])
    for _ in range(order):
        slope = slope.deriv() * np.polynomial.Polynomial([-1.0, 0.0, -1.0])
    return [float(each) for each in slope.coef]


def _zeta(operand: Tensor, power: int) -> Tensor:
    """Hurwitz's, by Euler and Maclaurin's sum; of what is not negative."""

    def inverse(shifted: Tensor, exponent: int) -> Tensor:
        reciprocal = found = 1 / shifted
        for _ in range(exponent - 1):
            found = found * reciprocal
        return found

    total: Any = inverse(operand, power)
    for step in range(1, _STEPS):
        total = total + inverse(operand + step, power)
    shifted = operand + _STEPS
    terms = [
        b * math.prod(range(power, power + 2 * k - 1)) / math.factorial(2 * k)
        for k, b in enumerate(_NUMBERS, 1)
    ]
    tail = inverse(shifted, power - 1) / (power - 1) + inverse(shifted, power) / 2
    found: Tensor = (
        total + tail + inverse(shifted, power + 1) * _polynomial(terms, inverse(shifted, 2))
    )
    return found


_STEPS_OF_HURWITZ: Final = 20
_LEAST_OF_HURWITZ: Final = 8 - _STEPS_OF_HURWITZ


def _hurwitz(power: Tensor, operand: Tensor) -> Tensor:
    """``zeta(x, q)`` by Euler and Maclaurin's sum; no number for `operand` below -12."""
    total: Any = torch.pow(operand, -power)
    for step in range(1, _STEPS_OF_HURWITZ):
        total = total + torch.pow(operand + step, -power)
    behind = operand + _STEPS_OF_HURWITZ
    reciprocal = 1 / behind
    square = reciprocal * reciprocal
    rest: Any = torch.zeros_like(square)
    for k in range(len(_NUMBERS), 0, -1):
        rest = _NUMBERS[k - 1] / math.factorial(2 * k) + rest * (
            (power + (2 * k - 1)) * (power + 2 * k) * square
        )
    last = torch.pow(behind, -power)
    tail = last * (behind / (power - 1) + 0.5 + power * reciprocal * rest)
    # Of a high power nothing is left behind, and what it is multiplied with overflows.
    ended = (last == 0) & ((total > 0) | torch.isfinite(power * behind))
    found = total + torch.where(ended, last, tail)
    nothing = torch.full_like(found, math.nan)
    whole = operand == torch.floor(operand)
    found = torch.where((operand <= 0) & whole, torch.full_like(found, math.inf), found)
    broken = (operand < 0) & ~whole & (power != torch.floor(power))
    found = torch.where(broken | ((operand < _LEAST_OF_HURWITZ) & ~whole), nothing, found)
    found = torch.where(power == 1, torch.full_like(found, math.inf), found)
    return torch.where(power < 1, nothing, found)


# Of the series and of the continued fraction, of which each converges on its side.
_TERMS_OF_GAMMA: Final = 48
# From this order on, and so near to it, Temme's expansion is as precise as float32.
_LARGE_ORDER: Final = 20.0
_NEAR_ORDER: Final = 0.3


def _share_of_gamma(order: Tensor, operand: Tensor) -> tuple[Tensor, Tensor]:
    """The lower and the upper incomplete gamma function over the whole one."""
    one = torch.ones_like(order + operand)
    a, x = order * one, operand * one
    front = torch.exp(a * torch.log(x) - x - _log_gamma(a + 1))
    series: Any = one
    for step in range(_TERMS_OF_GAMMA, 0, -1):
        series = 1 + x / (a + step) * series
    below = front * series
    beyond = x > a + 1
    # Where the fraction does not hold, any number that is not zero.
    far = torch.where(beyond, x, a + 2)
    fraction: Any = far + (2 * _TERMS_OF_GAMMA + 1) - a
    for step in range(_TERMS_OF_GAMMA, 0, -1):
        fraction = far + (2 * step - 1) - a - step * (step - a) / fraction
    above = front * a / fraction
    lower = torch.where(beyond, 1 - above, below)
    upper = torch.where(beyond, above, 1 - below)
    lower_near, upper_near = _near_a_large_order(a, x)
    near = (a >= _LARGE_ORDER) & ((x - a).abs() < _NEAR_ORDER * a)
    lower, upper = torch.where(near, lower_near, lower), torch.where(near, upper_near, upper)
    none, all_of_it = torch.zeros_like(lower), torch.ones_like(lower)
    least, most = (x == 0) | torch.isinf(a), (a == 0) | torch.isinf(x)
    odd = (x < 0) | (a < 0) | (least & most) | ((a == 0) & torch.isnan(x))
    nothing = torch.full_like(lower, math.nan)
    lower = torch.where(most, all_of_it, torch.where(least, none, lower))
    upper = torch.where(most, none, torch.where(least, all_of_it, upper))
    return torch.where(odd, nothing, lower), torch.where(odd, nothing, upper)


def _near_a_large_order(order: Tensor, operand: Tensor) -> tuple[Tensor, Tensor]:
    """Temme's uniform expansion, to its second term."""
    apart = ((operand - order) / order).clamp(-_NEAR_ORDER, _NEAR_ORDER)
    place = apart / _NEAR_ORDER
    eta = apart * torch.sqrt(_polynomial(_temme(0), place))
    terms = _polynomial(_temme(1), place) + _polynomial(_temme(2), place) / order
    rest = torch.exp(-order * eta * eta / 2) / torch.sqrt(2 * math.pi * order) * terms
    half = eta * torch.sqrt(order / 2)
    return _complement(-half) / 2 - rest, _complement(half) / 2 + rest


@cache
def _temme(term: int) -> list[float]:
    """Of x/a - 1 over its bound: ``2 (m - log(1 + m)) / m^2``, and the two terms."""

    def value(place: float) -> float:
        m = place * _NEAR_ORDER
        square = 2 * (m - math.log1p(m))
        eta = math.copysign(math.sqrt(square), m)
        if term == 0:
            return square / (m * m)
        if term == 1:
            return 1 / m - 1 / eta
        return 1 / eta**3 - 1 / m**3 - 1 / m**2 - 1 / (12 * m)

    # An odd degree has no place at 0.
    return _fitted(value, 9)


def _complement(operand: Tensor) -> Tensor:
    """``1 - erf(x)``, with its digits where it is small."""
    behind = _scaled(operand.abs()) * torch.exp(-operand * operand)
    behind = torch.where(operand < 0, 2 - behind, behind)
    return torch.where(operand.abs() < 0.5, 1 - torch.erf(operand), behind)


def _scaled_complement(operand: Tensor) -> Tensor:
    ahead = _scaled(operand.abs())
    return torch.where(operand < 0, 2 * torch.exp(operand * operand) - ahead, ahead)


def _scaled(size: Tensor) -> Tensor:
    """``exp(x * x) * erfc(x)`` of what is not negative."""
    # From -1 at 0 to 1 at infinity.
    place = 1 - 2 * _MIDDLE / (size + _MIDDLE)
    return _polynomial(_scaled_series(), place) / (1 + 2 * size)


_MIDDLE: Final = 3.0


@cache
def _scaled_series() -> list[float]:
    def value(place: float) -> float:
        x = _MIDDLE * (1 + place) / (1 - place)
        if x < 5:
            return (1 + 2 * x) * math.exp(x * x) * math.erfc(x)
        # Laplace's continued fraction.
        rest = x
        for step in range(60, 0, -1):
            rest = x + step / 2 / rest
        return (1 + 2 * x) / (rest * math.sqrt(math.pi))

    return _fitted(value, 22)


def _inverse_error(operand: Tensor) -> Tensor:
    return _from_tail((1 - operand) * (1 + operand), operand)


def _quantile(share: Tensor) -> Tensor:
    """The quantile of a normal distribution."""
    return math.sqrt(2) * _from_tail(4 * share * (1 - share), 2 * share - 1)


def _from_tail(rest: Tensor, operand: Tensor) -> Tensor:
    """``erfinv(x)`` from ``1 - x * x``, which has more digits where x is almost one."""
    w = -torch.log(rest)
    root = torch.sqrt(torch.where(w < _NEAR, torch.full_like(w, _NEAR), w))
    near = operand * _polynomial(_near_series(), w * (2 / _NEAR) - 1)
    start = math.sqrt(_NEAR)
    farthest = _FARTHEST if operand.dtype == torch.float32 else _FARTHEST_OF_DOUBLES
    far = _polynomial(_far_series(farthest), (root - start) * (2 / (farthest - start)) - 1)
    far = torch.where(torch.isinf(w), w, far)
    return torch.where(w < _NEAR, near, torch.where(operand < 0, -far, far))


_NEAR: Final = 5.0
_FARTHEST: Final = 11.0
_FARTHEST_OF_DOUBLES: Final = 26.5


def _inverse_of_tail(w: float) -> float:
    """``erfinv`` of the positive x whose ``-log(1 - x * x)`` is `w`."""
    tail = -math.expm1(0.5 * math.log1p(-math.exp(-w))) if w < 30 else math.exp(-w) / 2
    return -NormalDist().inv_cdf(tail / 2) / math.sqrt(2)


@cache
def _near_series() -> list[float]:
    def value(place: float) -> float:
        w = (place + 1) * _NEAR / 2
        return _inverse_of_tail(w) / math.sqrt(-math.expm1(-w))

    return _fitted(value, 14)


@cache
def _far_series(farthest: float) -> list[float]:
    start = math.sqrt(_NEAR)

    def value(place: float) -> float:
        return _inverse_of_tail((start + (place + 1) * (farthest - start) / 2) ** 2)

    return _fitted(value, 14 if farthest == _FARTHEST else 30)


def _bessel(operand: Tensor, order: int) -> Tensor:
    """``exp(-abs(x))`` times the modified Bessel function of the first kind."""
    size = operand.abs()
    inner = _polynomial(_bessel_inside(order), size / 4 - 1)
    outer = torch.where(size < _STEPS, torch.full_like(size, _STEPS), size)
    far = _polynomial(_bessel_outside(order), 16 / outer - 1) / torch.sqrt(outer)
    if order:
        inner = inner * size
    found = torch.where(size > _STEPS, far, inner)
    return torch.where(operand < 0, -found, found) if order else found


@cache
def _bessel_inside(order: int) -> list[float]:
    def value(place: float) -> float:
        x = 4 * (place + 1)
        return _bessel_number(x, order) / (x if order else 1)

    return _fitted(value, 26)


@cache
def _bessel_outside(order: int) -> list[float]:
    def value(place: float) -> float:
        x = 16 / (place + 1)
        return _bessel_number(x, order) * math.sqrt(x)

    return _fitted(value, 20)


def _bessel_number(x: float, order: int) -> float:
    if x < 60:
        term = total = (x / 2) ** order
        for k in range(1, 200):
            term *= (x / 2) ** 2 / (k * (k + order))
            total += term
        return math.exp(-x) * total
    term = total = 1.0
    for k in range(1, 16):
        term *= -(4 * order**2 - (2 * k - 1) ** 2) / (8 * k * x)
        total += term
    return total / math.sqrt(2 * math.pi * x)


def _angle(operand: Tensor) -> Any:
    if operand.dtype.is_complex:
        return NotImplemented
    wide = operand if operand.dtype.is_floating_point else operand.to(torch.get_default_dtype())
    found = torch.where(wide < 0, torch.full_like(wide, math.pi), torch.zeros_like(wide))
    return torch.where(torch.isnan(wide), wide, found)


def _fitted(value: Callable[[float], float], degree: int) -> list[float]:
    """Coefficients of the polynomial that meets a function at Chebyshev's places in (-1, 1)."""
    fit = np.polynomial.Chebyshev.interpolate(np.vectorize(value), degree)
    return [float(each) for each in fit.convert(kind=np.polynomial.Polynomial).coef]


def _polynomial(coefficients: list[float], operand: Tensor) -> Tensor:
    found = torch.full_like(operand, coefficients[-1])
    for each in reversed(coefficients[:-1]):
        found = found * operand + each
    return found

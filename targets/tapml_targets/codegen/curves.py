"""Functions whose result WGSL and GLSL leave open, or allow to be wrong in most digits.

``tanh``, ``sinh``, ``asinh``, ``acosh`` and ``atanh`` may be computed from exponentials and
logarithms: near zero, or for ``acosh`` near 1, nothing is left of their digits. ``atan`` may be
wrong by 4096 units in the last place, and what follows from it. They are computed here to a few
units: polynomials of Cephes, the quotient of polynomials that TVM and Eigen have for ``tanh``, and
series of our own. ``exp``, ``cosh`` and ``log`` are the language's but for NaN, infinities, zero
and denormals; neither language has ``erf``. Both share the text but for its spelling.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# Of NaN, some implementations give an infinity.
_EXP: Final = "  return {choose}(exp(x), x, tapml_isnan(x));"
_COSH: Final = "  return {choose}(cosh(x), x, tapml_isnan(x));"
# What is below 2**-126 is a whole number of 2**-149, which implementations may take for zero; of
# NaN, an infinity, zero and negative numbers some give a finite number.
_LOG: Final = """\
  {let} number = {choose}(log(x), log({real}({bits}(x) & 0x7fffffu)) - 103.27892990343,
    {bits}(x) < 0x00800000u);
  {let} above = {choose}(number, x, {bits}(x) >= 0x7f800000u);
  {let} below = {choose}(above, tapml_nan(), {bits}(x) > 0x80000000u);
  return {choose}(below, -tapml_infinity(), ({bits}(x) & 0x7fffffffu) == 0u);"""
# The sums of the series are exact to float32 from -0.4 to 0.6.
_LOG1P: Final = """\
  {let} part = x / (2.0 + x);
  {let} square = part * part;
  {let} near = 2.0 * part * (1.0 + square * (0.33333333333 + square * (0.2 + square
    * (0.14285714286 + square * (0.11111111111 + square * 0.09090909091)))));
  return {choose}(tapml_log(1.0 + x), near, x > -0.4 && x < 0.6);"""
# The rational approximation that TVM and Eigen use; its error is below 2 ulp of 1.
_ERF: Final = """\
  {let} inside = clamp(x, -4.0, 4.0);
  {let} square = inside * inside;
  {let} above = inside * (-1.60960333262415e-02 + square * (-2.95459980854025e-03
    + square * (-7.34990630326855e-04 + square * (-5.69250639462346e-05
    + square * (-2.10102402082508e-06 + square * (2.77068142495902e-08
    + square * -2.72614225801306e-10))))));
  {let} below = -1.42647390514189e-02 + square * (-7.37332916720468e-03
    + square * (-1.68282697438203e-03 + square * (-2.13374055278905e-04
    + square * -1.45660718464996e-05)));
  return {choose}(above / below, x, tapml_isnan(x));"""
_TANH: Final = """\
  {let} inside = clamp(x, -7.90531110763549805, 7.90531110763549805);
  {let} square = inside * inside;
  {let} above = inside * (4.89352455891786e-03 + square * (6.37261928875436e-04 + square
    * (1.48572235717979e-05 + square * (5.12229709037114e-08 + square * (-8.60467152213735e-11
    + square * (2.00018790482477e-13 + square * -2.76076847742355e-16))))));
  {let} below = 4.89352518554385e-03 + square * (2.26843463243900e-03 + square
    * (1.18534705686654e-04 + square * 1.19825839466702e-06));
  return {choose}(above / below, x, tapml_isnan(x) || abs(x) < 0.0004);"""
_SINH: Final = """\
  {let} square = x * x;
  {let} near = x + x * square * (0.16666666667 + square * (0.0083333333333 + square
    * (0.00019841269841 + square * (2.7557319224e-6 + square * 2.5052108385e-8))));
  return {choose}(sinh(x), near, abs(x) < 1.0);"""
_ASINH: Final = """\
  {let} size = abs(x);
  {let} square = size * size;
  {let} near = tapml_log1p(size + square / (1.0 + sqrt(square + 1.0)));
  {let} found = {choose}(near, tapml_log(size) + 0.69314718056, size > 10000.0);
  return {choose}(found, -found, x < 0.0);"""
_ACOSH: Final = """\
  {let} more = max(x - 1.0, 0.0);
  {let} near = tapml_log1p(more + sqrt(2.0 * more + more * more));
  {let} found = {choose}(near, tapml_log(x) + 0.69314718056, x > 10000.0);
  return {choose}(found, tapml_nan(), x < 1.0 || tapml_isnan(x));"""
_ATANH: Final = """\
  {let} size = abs(x);
  {let} near = 0.5 * tapml_log1p(2.0 * size / max(1.0 - size, 1.0e-30));
  {let} edge = {choose}(near, tapml_infinity(), size == 1.0);
  {let} found = {choose}(edge, tapml_nan(), size > 1.0 || tapml_isnan(x));
  return {choose}(found, -found, x < 0.0);"""
_ASIN: Final = """\
  {let} size = abs(x);
  {yes} steep = size > 0.5;
  {let} square = {choose}(size * size, 0.5 * max(1.0 - size, 0.0), steep);
  {let} part = {choose}(size, sqrt(square), steep);
  {let} near = part + part * square * (1.6666752422e-1 + square * (7.4953002686e-2 + square
    * (4.5470025998e-2 + square * (2.4181311049e-2 + square * 4.2163199048e-2))));
  {let} found = {choose}(near, 1.57079632679 - 2.0 * near, steep);
  {let} signed = {choose}(found, -found, x < 0.0);
  return {choose}(signed, tapml_nan(), size > 1.0 || tapml_isnan(x));"""
_ACOS: Final = """\
  {yes} steep = abs(x) > 0.5;
  {let} part = {choose}(x, sqrt(0.5 * max(1.0 - abs(x), 0.0)), steep);
  {let} angle = tapml_asin(part);
  {let} far = {choose}(2.0 * angle, 3.14159265359 - 2.0 * angle, x < 0.0);
  {let} found = {choose}(1.57079632679 - angle, far, steep);
  return {choose}(found, tapml_nan(), abs(x) > 1.0 || tapml_isnan(x));"""
_ATAN: Final = """\
  {let} size = abs(x);
  {yes} steep = size > 2.414213562373095;
  {yes} slanted = size > 0.4142135623730950 && !steep;
  {let} part = {choose}({choose}(size, (size - 1.0) / (size + 1.0), slanted), -1.0 / size, steep);
  {let} start = {choose}({choose}(0.0, 0.785398163397, slanted), 1.57079632679, steep);
  {let} square = part * part;
  {let} found = start + (part + part * square * (-3.33329491539e-1 + square * (1.99777106478e-1
    + square * (-1.38776856032e-1 + square * 8.05374449538e-2))));
  return {choose}(found, -found, x < 0.0);"""
_ATAN2: Final = """\
  {let} high = abs(x);
  {let} wide = abs(y);
  {yes} steep = high > wide;
  {let} less = {choose}(high, wide, steep);
  {let} more = {choose}(wide, high, steep);
  {let} even = {choose}(less / {choose}(more, 1.0, more == 0.0), 1.0, less == more && more > 0.0);
  {let} angle = tapml_atan(even);
  {let} first = {choose}(angle, 1.57079632679 - angle, steep);
  {let} turned = {choose}(first, 3.14159265359 - first, {bits}(y) >= 0x80000000u);
  return {choose}(turned, -turned, {bits}(x) >= 0x80000000u && !tapml_isnan(x));"""
_BODIES: Final = {
    "exp": _EXP, "cosh": _COSH, "log": _LOG, "log1p": _LOG1P, "erf": _ERF, "tanh": _TANH,
    "sinh": _SINH, "asinh": _ASINH, "acosh": _ACOSH, "atanh": _ATANH,
    "asin": _ASIN, "acos": _ACOS, "atan": _ATAN, "atan2": _ATAN2,
}  # fmt: skip
_CALLED: Final = ("tapml_isnan", "tapml_nan", "tapml_infinity", "tapml_log", "tapml_log1p",
                  "tapml_asin", "tapml_atan")  # fmt: skip

CURVES: Final = frozenset(_BODIES)
"""Names of the functions, without a suffix."""


def curve_texts(heads: tuple[str, str], spelling: Mapping[str, str]) -> dict[str, str]:
    """The text of each function in a language, by its name with the prefix ``tapml_``.

    Parameters
    ----------
    heads
        The line that begins a function of ``x``, and one of ``x`` and ``y``, with ``{name}``.
    spelling
        How a number (``let``) and a predicate (``yes``) are declared, which function chooses its
        second argument where the third is true (``choose``), and which reads bits (``bits``) and
        makes a number of an integer (``real``).
    """
    texts = {}
    for name, body in _BODIES.items():
        head = heads[name == "atan2"].format(name=f"tapml_{name}")
        texts[f"tapml_{name}"] = f"{head} {{\n{body.format_map(spelling)}\n}}"
    return texts


def needed(name: str) -> list[str]:
    """The functions that ``tapml_<name>`` takes, itself last."""
    body = _BODIES[name]
    found: list[str] = []
    for called in _CALLED:
        if f"{called}(" not in body:
            continue
        own = called.removeprefix("tapml_")
        found += needed(own) if own in _BODIES else [called]
    return [*dict.fromkeys(found), f"tapml_{name}"]

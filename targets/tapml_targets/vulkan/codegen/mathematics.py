"""GLSL's text of functions that it lacks, or whose result it leaves open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tapml_targets.codegen.curves import curve_texts

_POWER: Final = """\
{t} tapml_power_{s}({t} x, {t} y) {{
  if (y == {t}(0.0)) return {t}(1.0);
  if (tapml_isnan(float(x)) || tapml_isnan(float(y))) return {t}(tapml_nan());
  bool whole = y == floor(y);
  bool odd = whole && floor(y * {t}(0.5)) * {t}(2.0) != y;
  bool negative = (floatBitsToUint(float(x)) >> 31) != 0u;
  {t} endless = {t}(tapml_infinity());
  if (x == {t}(0.0)) {{
    {t} edge = y > {t}(0.0) ? {t}(0.0) : endless;
    return negative && odd ? -edge : edge;
  }}
  if (negative && !whole && abs(x) != endless) return {t}(tapml_nan());
  {t} size = pow(abs(x), y);
  return negative && odd ? -size : size;
}}"""
# A comparison of a number with itself is true for NaN on some implementations, and on others not.
_IS_NAN: Final = """\
bool tapml_isnan(float x) { return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u; }"""
# x less the nearest multiple of pi/2, taken off in four parts: 8 bits of pi/2 each, so that their
# products with up to 2**16 quarter turns are exact. Then polynomials around zero, those of Cephes.
_WAVE: Final = """\
float tapml_wave(float x, int quarters) {
  precise float turns = roundEven(x * 0.636619772);
  precise float part = (((x - turns * 1.5703125) - turns * 0.0004825592041015625)
    - turns * 1.2665987014770508e-6) - turns * 9.920935796805404e-10;
  float square = part * part;
  float odd = part + part * square * (-1.6666654611e-1
    + square * (8.3321608736e-3 + square * -1.9515295891e-4));
  float even = 1.0 - 0.5 * square + square * square * (4.166664568298827e-2
    + square * (-1.388731625493765e-3 + square * 2.443315711809948e-5));
  int quarter = int(turns) + quarters;
  float size = (quarter & 1) != 0 ? even : odd;
  return (quarter & 2) != 0 ? -size : size;
}
float tapml_sin(float x) { return abs(x) > 100000.0 ? sin(x) : tapml_wave(x, 0); }
float tapml_cos(float x) { return abs(x) > 100000.0 ? cos(x) : tapml_wave(x, 1); }"""
# Mesa 22.3 compares int64_t(x) with a constant wrongly; what is packed it leaves alone.
_WIDENED: Final = "int64_t tapml_widened(int x) { return pack64(ivec2(x, x >> 31)); }"
# `/` goes towards zero; of negative operands GLSL says nothing of `%`.
_REMAINDERS: Final = """\
{t} tapml_truncated_{t}({t} a, {t} b) {{ return a - b * (a / b); }}
{t} tapml_floored_{t}({t} a, {t} b) {{
  {t} rest = a - b * (a / b);
  return rest != {t}(0) && (rest < {t}(0)) != (b < {t}(0)) ? rest + b : rest;
}}
{t} tapml_quotient_{t}({t} a, {t} b) {{ return (a - tapml_floored_{t}(a, b)) / b; }}"""
_BITS: Final = {"tapml_infinity": "0x7f800000u", "tapml_nan": "0x7fc00000u"}
_TYPES: Final = {"f32": "float", "f16": "float16_t"}
_FACTORS: Final = {2: "x * x", 3: "x * x * x", 4: "(x * x) * (x * x)"}

TEXTS: Final[Mapping[str, str]] = {
    "tapml_isnan": _IS_NAN,
    "tapml_wave": _WAVE,
    "tapml_widened": _WIDENED,
    "tapml_half_bits": "uint tapml_half_bits(float16_t x) {"
    " return packFloat2x16(f16vec2(x, float16_t(0.0))); }",
    "tapml_half_of": "float16_t tapml_half_of(uint bits) {"
    " return unpackFloat2x16(bits & 0xffffu).x; }",
    **curve_texts(
        ("float {name}(float x)", "float {name}(float x, float y)"),
        {
            "let": "float",
            "yes": "bool",
            "choose": "mix",
            "bits": "floatBitsToUint",
            "real": "float",
        },
    ),
    **{f"tapml_remainders_{t}": _REMAINDERS.format(t=t) for t in ("int", "int64_t")},
    **{f"tapml_power_{s}": _POWER.format(t=t, s=s) for s, t in _TYPES.items()},
    **{
        (name := f"tapml_power_{power}_{s}"): f"{t} {name}({t} x) {{ return {factors}; }}"
        for power, factors in _FACTORS.items()
        for s, t in _TYPES.items()
    },
    **{
        name: f"float {name}() {{ return uintBitsToFloat({bits}); }}"
        for name, bits in _BITS.items()
    },
}
"""The text of every function by name, and of some by what they have in common."""

"""WGSL's text of the functions that :mod:`tapml_targets.codegen.mathematics` calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tapml_targets.codegen.curves import curve_texts

_POWER: Final = """\
fn tapml_power_{t}(x : {t}, y : {t}) -> {t} {{
  if (y == 0.0{s}) {{ return 1.0{s}; }}
  if (tapml_isnan(f32(x)) || tapml_isnan(f32(y))) {{ return {t}(tapml_nan()); }}
  let whole = y == floor(y);
  let odd = whole && floor(y * 0.5{s}) * 2.0{s} != y;
  let negative = (bitcast<u32>(f32(x)) >> 31u) != 0u;
  let endless = {t}(tapml_infinity());
  if (x == 0.0{s}) {{
    let edge = select(endless, 0.0{s}, y > 0.0{s});
    return select(edge, -edge, negative && odd);
  }}
  if (negative && !whole && abs(x) != endless) {{ return {t}(tapml_nan()); }}
  let size = pow(abs(x), y);
  return select(size, -size, negative && odd);
}}"""
# A comparison of a number with itself is true for NaN on some implementations, and on others not.
_IS_NAN: Final = """\
fn tapml_isnan(x : f32) -> bool {
  return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}"""
# x less the nearest multiple of pi/2, taken off in four parts: 8 bits of pi/2 each, so that their
# products with up to 2**16 quarter turns are exact. Then polynomials around zero, those of Cephes.
_WAVE: Final = """\
fn tapml_wave(x : f32, quarters : i32) -> f32 {
  let turns = round(x * 0.636619772f);
  let part = (((x - turns * 1.5703125f) - turns * 0.0004825592041015625f)
    - turns * 1.2665987014770508e-6f) - turns * 9.920935796805404e-10f;
  let square = part * part;
  let odd = part + part * square * (-1.6666654611e-1f
    + square * (8.3321608736e-3f + square * -1.9515295891e-4f));
  let even = 1.0f - 0.5f * square + square * square * (4.166664568298827e-2f
    + square * (-1.388731625493765e-3f + square * 2.443315711809948e-5f));
  let quarter = i32(turns) + quarters;
  let size = select(odd, even, (quarter & 1i) != 0i);
  return select(size, -size, (quarter & 2i) != 0i);
}
fn tapml_sin(x : f32) -> f32 {
  if (abs(x) > 100000.0f) { return sin(x); }
  return tapml_wave(x, 0i);
}
fn tapml_cos(x : f32) -> f32 {
  if (abs(x) > 100000.0f) { return cos(x); }
  return tapml_wave(x, 1i);
}"""
_BITS: Final = {"tapml_infinity": "0x7f800000u", "tapml_nan": "0x7fc00000u"}
_SUFFIXES: Final = {"f32": "f", "f16": "h"}
_FACTORS: Final = {2: "x * x", 3: "x * x * x", 4: "(x * x) * (x * x)"}

TEXTS: Final[Mapping[str, str]] = {
    "tapml_isnan": _IS_NAN,
    "tapml_wave": _WAVE,
    "tapml_half_bits": "fn tapml_half_bits(x : f16) -> u32 {"
    " return pack2x16float(vec2<f32>(f32(x), 0.0)); }",
    "tapml_half_of": "fn tapml_half_of(bits : u32) -> f16 {"
    " return f16(unpack2x16float(bits & 0xffffu).x); }",
    **curve_texts(
        ("fn {name}(x : f32) -> f32", "fn {name}(x : f32, y : f32) -> f32"),
        {"let": "let", "yes": "let", "choose": "select", "bits": "bitcast<u32>", "real": "f32"},
    ),
    **{f"tapml_power_{t}": _POWER.format(t=t, s=s) for t, s in _SUFFIXES.items()},
    **{
        (name := f"tapml_power_{power}_{t}"): f"fn {name}(x : {t}) -> {t} {{ return {factors}; }}"
        for power, factors in _FACTORS.items()
        for t in _SUFFIXES
    },
    **{
        name: f"var<private> {name}_bits : u32 = {bits};\n"
        f"fn {name}() -> f32 {{ return bitcast<f32>({name}_bits); }}"
        for name, bits in _BITS.items()
    },
}
"""The text of every function of :func:`tapml_targets.codegen.mathematics.spell_out`."""

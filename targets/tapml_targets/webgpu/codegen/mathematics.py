"""Functions and constants that mean something else in WGSL, or nothing, spelt so that they do.

- ``pow`` of a negative number is undefined in WGSL, also to a whole power: x * x is 9 for -3, and
  ``pow(-3, 2)`` may be NaN. Small whole powers become products, others keep to the sign's rules.
- ``sin`` and ``cos`` may be wrong by 2**-11 between -pi and pi, by anything beyond, and on some
  implementations they are: the positions of a model are beyond. They are computed here instead,
  to about one unit in the last place of 1 up to 100,000.
- ``x != x`` asks whether x is a NaN; WGSL may take it that there are none, and implementations do:
  the bits are asked instead.
- An infinity or a NaN cannot be written down; as a bit pattern it would be an error as well, if the
  compiler could see that it is constant.
"""

from __future__ import annotations

import math
from typing import Any, Final

import tvm
import tvm_ffi
from tvm import tirx

from tapml_targets.codegen.expression import call_name

_PRODUCTS: Final = 4
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
_WAVES: Final = frozenset({"sin", "cos"})
_BITS: Final = {
    "tapml_infinity": "0x7f800000u",
    "tapml_nan": "0x7fc00000u",
}
_SUFFIX: Final = {"f32": "f", "f16": "h"}
_KINDS: Final = {"float32": "f32", "float16": "f16"}


def spell_out(function: Any) -> tuple[Any, str]:
    """A device function with such calls and constants replaced.

    Returns
    -------
    function
        The device PrimFunc.
    text
        The functions of WGSL that it calls now; empty where it calls none.
    """
    functions: dict[str, str] = {}

    def constant(node: Any) -> Any:
        value, kind = float(node.value), str(node.ty)
        if math.isfinite(value) or kind not in _KINDS:
            return node
        name = "tapml_nan" if math.isnan(value) else "tapml_infinity"
        functions[name] = _bit_pattern(name)
        found = tirx.call_pure_extern("float32", name)
        found = found if kind == "float32" else tirx.Cast(kind, found)
        return tirx.Mul(found, tirx.FloatImm(kind, -1.0)) if value < 0 else found

    def is_nan(value: Any) -> Any:
        functions["tapml_isnan"] = _IS_NAN
        return tirx.call_pure_extern("bool", "tapml_isnan", _single(value))

    def call(node: Any) -> Any:
        if call_name(node) == "isnan":
            return is_nan(node.args[0])
        kind = _KINDS.get(str(node.ty))
        name = _called(node)
        if kind is not None and name in _WAVES:
            functions["tapml_wave"] = _WAVE
            wave = tirx.call_pure_extern("float32", f"tapml_{name}", _single(node.args[-1]))
            return wave if kind == "f32" else tirx.Cast("float16", wave)
        if kind is None or name != "pow":
            return node
        base, exponent = list(node.args)[-2:]
        if isinstance(exponent, tirx.FloatImm | tirx.IntImm):
            product = _product(base, float(exponent.value), str(node.ty), functions)
            if product is not None:
                return product
        for pattern in _BITS:
            functions[pattern] = _bit_pattern(pattern)
        functions["tapml_isnan"] = _IS_NAN
        functions[f"tapml_power_{kind}"] = _POWER.format(t=kind, s=_SUFFIX[kind])
        return tirx.call_pure_extern(str(node.ty), f"tapml_power_{kind}", base, exponent)

    def comparison(node: Any) -> Any:
        if str(node.a.ty) not in _KINDS or not tvm_ffi.structural_equal(node.a, node.b):
            return node
        return is_nan(node.a) if isinstance(node, tirx.NE) else tirx.Not(is_nan(node.a))

    function = tvm_ffi.structural_map(
        function,
        [
            (tirx.FloatImm, constant),
            (tvm.ir.Call, call),
            (tirx.NE, comparison),
            (tirx.EQ, comparison),
        ],
    )
    return function, "\n".join(functions.values())


def _single(value: Any) -> Any:
    return value if str(value.ty) == "float32" else tirx.Cast("float32", value)


def _bit_pattern(name: str) -> str:
    return (
        f"var<private> {name}_bits : u32 = {_BITS[name]};\n"
        f"fn {name}() -> f32 {{ return bitcast<f32>({name}_bits); }}"
    )


def _called(node: Any) -> str:
    """Name of the function that an extern call names."""
    if str(getattr(node.op, "name", "")).rsplit(".", 1)[-1] != "call_pure_extern":
        return ""
    return str(getattr(node.args[0], "value", ""))


def _product(base: Any, exponent: float, kind: str, functions: dict[str, str]) -> Any:
    power = int(exponent) if exponent == int(exponent) else 0
    if not 2 <= power <= _PRODUCTS:
        return None
    spelt = _KINDS[kind]
    name = f"tapml_power_{power}_{spelt}"
    factors = {2: "x * x", 3: "x * x * x", 4: "(x * x) * (x * x)"}[power]
    functions[name] = f"fn {name}(x : {spelt}) -> {spelt} {{ return {factors}; }}"
    return tirx.call_pure_extern(kind, name, base)

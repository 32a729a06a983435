"""Functions and constants whose meaning WGSL and GLSL leave open, spelt so that they have C's.

- ``pow`` of a negative number is undefined, also to a whole power: x * x is 9 for -3, and
  ``pow(-3, 2)`` may be NaN. Small whole powers become products, others keep to the sign's rules.
- ``sin`` and ``cos`` may be wrong by 2**-11 between -pi and pi, by anything beyond, and on some
  implementations they are: the positions of a model are beyond. They are computed here instead,
  to about one unit in the last place of 1 up to 100,000.
- Other curves: :mod:`.curves`.
- ``x != x`` asks whether x is a NaN; a compiler may take it that there are none, and some do: the
  bits are asked instead.
- Integers of 16 bits, which the bits of a half are, may be no type of the language: they are the
  lower half of a word.
- An infinity or a NaN cannot be written down; as a bit pattern it would be an error as well, if the
  compiler could see that it is constant.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import tvm
import tvm_ffi
from tvm import tirx

from tapml_targets.codegen.curves import CURVES, needed
from tapml_targets.codegen.expression import call_name

_PRODUCTS: Final = 4
_WAVES: Final = frozenset({"sin", "cos"})
_C_NAMES: Final = frozenset({"powf", "sinf", "cosf", *(f"{name}f" for name in CURVES)})
_PATTERNS: Final = ("tapml_infinity", "tapml_nan")
_KINDS: Final = {"float32": "f32", "float16": "f16"}
_HALF_WORDS: Final = ("int16", "uint16")


def spell_out(function: Any, texts: Mapping[str, str]) -> tuple[Any, str]:
    """A device function with such calls and constants replaced.

    Parameters
    ----------
    function
        The device PrimFunc.
    texts
        The text of each function in a platform's language, by name.

    Returns
    -------
    function
        The device PrimFunc.
    text
        The functions that it calls now; empty where it calls none.
    """
    functions: dict[str, str] = {}

    def constant(node: Any) -> Any:
        value, kind = float(node.value), str(node.ty)
        if math.isfinite(value) or kind not in _KINDS:
            return node
        name = "tapml_nan" if math.isnan(value) else "tapml_infinity"
        functions[name] = texts[name]
        found = tirx.call_pure_extern("float32", name)
        found = found if kind == "float32" else tirx.Cast(kind, found)
        return tirx.Mul(found, tirx.FloatImm(kind, -1.0)) if value < 0 else found

    def is_nan(value: Any) -> Any:
        functions["tapml_isnan"] = texts["tapml_isnan"]
        return tirx.call_pure_extern("bool", "tapml_isnan", _single(value))

    def bits_of_halves(node: Any) -> Any:
        (value,), kind = node.args, str(node.ty)
        if str(value.ty) == "float16" and kind in _HALF_WORDS:
            functions["tapml_half_bits"] = texts["tapml_half_bits"]
            return tirx.Cast(kind, tirx.call_pure_extern("uint32", "tapml_half_bits", value))
        if kind == "float16" and str(value.ty) in _HALF_WORDS:
            functions["tapml_half_of"] = texts["tapml_half_of"]
            word = tirx.Cast("uint32", value)
            return tirx.call_pure_extern("float16", "tapml_half_of", word)
        return node

    def call(node: Any) -> Any:
        if call_name(node) == "isnan":
            return is_nan(node.args[0])
        if call_name(node) == "reinterpret":
            return bits_of_halves(node)
        kind = _KINDS.get(str(node.ty))
        name = _called(node)
        if kind is not None and name in _WAVES:
            functions["tapml_wave"] = texts["tapml_wave"]
            wave = tirx.call_pure_extern("float32", f"tapml_{name}", _single(node.args[-1]))
            return wave if kind == "f32" else tirx.Cast("float16", wave)
        if name in CURVES and str(node.ty).startswith("float"):
            functions.update((each, texts[each]) for each in needed(name))
            arguments = [_single(each) for each in _arguments(node)]
            curve = tirx.call_pure_extern("float32", f"tapml_{name}", *arguments)
            return curve if kind == "f32" else tirx.Cast(str(node.ty), curve)
        if kind is None or name != "pow":
            return node
        base, exponent = list(node.args)[-2:]
        if isinstance(exponent, tirx.FloatImm | tirx.IntImm):
            product = _product(float(exponent.value), str(node.ty))
            if product:
                functions[product] = texts[product]
                return tirx.call_pure_extern(str(node.ty), product, base)
        for pattern in _PATTERNS:
            functions[pattern] = texts[pattern]
        functions["tapml_isnan"] = texts["tapml_isnan"]
        functions[f"tapml_power_{kind}"] = texts[f"tapml_power_{kind}"]
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


def _arguments(node: Any) -> list[Any]:
    return list(node.args)[call_name(node) == "call_pure_extern" :]


def _called(node: Any) -> str:
    """Name of the function that a call, or an extern call, is of."""
    if call_name(node) != "call_pure_extern":
        return call_name(node) if call_name(node) in CURVES else ""
    name = str(getattr(node.args[0], "value", ""))
    # As C spells them for float32, where TVM has no rules of a target's own.
    return name.removesuffix("f") if name in _C_NAMES else name


def _product(exponent: float, kind: str) -> str:
    """The function that multiplies as often as a small whole power says; empty for others."""
    power = int(exponent) if exponent == int(exponent) else 0
    return f"tapml_power_{power}_{_KINDS[kind]}" if 2 <= power <= _PRODUCTS else ""

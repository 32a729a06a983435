"""The syntax in which mutants differ between OpenCL C and WGSL."""

from __future__ import annotations

from typing import Final

# Bits of the mantissa that a shorter format keeps, in an unsigned integer of the type's size.
FLOAT16: Final = "0xFFFFE000"
BFLOAT16: Final = "0xFFFF0000"
HALF_AS_BFLOAT16: Final = "0xFFF8"


class OpenClWords:
    """OpenCL C."""

    always = "1"
    native = frozenset({"exp", "sin", "cos", "sqrt"})
    """Functions that have a fast ``native_`` form."""

    def real(self, number: str) -> str:
        """A literal of the type that it is used with, or wider."""
        return f"{number}f"

    def conversion(self, type_name: str) -> str:
        """The function that converts to a type."""
        return f"convert_{type_name}"

    def through(self, type_name: str, narrow: str, text: str) -> str:
        """A value that goes through a narrower type."""
        return f"convert_{type_name}(convert_{narrow}({text}))"

    def narrowed(self, call: str, inner: str) -> str:
        """A conversion whose argument goes through 8 bits first."""
        return f"{call}(convert_char({inner}))"

    def short_float(self, text: str, mask: str) -> str:
        """A float with some of its bits cut off."""
        return f"as_float(as_uint((float)({text})) & {mask}u)"

    def short_half(self, text: str) -> str:
        """A half with the mantissa of a bfloat16."""
        return f"as_half((ushort)(as_ushort((half)({text})) & {HALF_AS_BFLOAT16}))"


_WGSL_TYPES: Final = {"float": "f32", "half": "f16", "int": "i32", "uint": "u32", "bool": "bool"}


class WgslWords:
    """WGSL, whose numbers without a suffix take the type they are used with."""

    always = "true"
    native: frozenset[str] = frozenset()

    def real(self, number: str) -> str:
        """As in C."""
        return number

    def conversion(self, type_name: str) -> str:
        """As in C."""
        return _WGSL_TYPES.get(type_name, type_name)

    def through(self, type_name: str, narrow: str, text: str) -> str:
        """As in C; the low 8 bits are extracted, because there is no such type."""
        whole = _WGSL_TYPES[type_name]
        if narrow == "int":
            return f"{whole}(i32({text}))"
        return f"{whole}(u32({text}) & 255u)"

    def narrowed(self, call: str, inner: str) -> str:
        """As in C; the sign of the 8 bits counts, as it does there."""
        return f"{call}((i32({inner}) << 24u) >> 24u)"

    def short_float(self, text: str, mask: str) -> str:
        """As in C."""
        return f"bitcast<f32>(bitcast<u32>(f32({text})) & {mask}u)"

    def short_half(self, text: str) -> str:
        """As in C; a float16 is looked at in a pair of them."""
        pair = f"bitcast<u32>(vec2<f16>(f16({text}), 0.0h))"
        return f"bitcast<vec2<f16>>({pair} & {HALF_AS_BFLOAT16}u).x"


Words = OpenClWords | WgslWords
OPENCL: Final = OpenClWords()
WGSL: Final = WgslWords()

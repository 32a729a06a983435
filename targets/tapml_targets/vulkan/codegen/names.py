"""Names and types of GLSL for those of a device function."""

from __future__ import annotations

import re
import struct
from typing import Final

from tapml_targets.errors import CompileError

TYPES: Final = {
    "bool": "bool",
    "int32": "int",
    "uint32": "uint",
    "int64": "int64_t",
    "uint64": "uint64_t",
    "float16": "float16_t",
    "float32": "float",
    "float64": "double",
    "uint32x2": "uvec2",
}
STORED: Final = {
    **TYPES,
    "bool": "uint8_t",
    "int8": "int8_t",
    "uint8": "uint8_t",
    "int16": "int16_t",
    "uint16": "uint16_t",
}
EXTENSIONS: Final = {
    "float16": ("GL_EXT_shader_explicit_arithmetic_types_float16", "GL_EXT_shader_16bit_storage"),
    "int64": ("GL_EXT_shader_explicit_arithmetic_types_int64",),
    "int8": ("GL_EXT_shader_8bit_storage",),
    "int16": ("GL_EXT_shader_16bit_storage",),
    "subgroups": (
        "GL_KHR_shader_subgroup_basic",
        "GL_KHR_shader_subgroup_shuffle",
        "GL_KHR_shader_subgroup_shuffle_relative",
    ),
}
"""What a text asks its compiler for, by the device feature that it needs."""
FEATURES: Final = {
    "bool": "int8",
    "int8": "int8",
    "uint8": "int8",
    "int16": "int16",
    "uint16": "int16",
    "int64": "int64",
    "uint64": "int64",
    "float16": "float16",
    "float64": "float64",
}
"""The device feature that a tensor of a dtype needs where it is bound as what it is."""
# Decimal digits that any compiler reads as this very number.
_PLAIN: Final = re.compile(r"-?\d{1,4}\.\d{1,3}")


class Names:
    """Gives every variable its own name, which GLSL does not use.

    GLSL's words have no underscore before a number, so a number behind each name is enough.
    """

    def __init__(self) -> None:
        self._used: dict[str, int] = {}

    def fresh(self, name: str) -> str:
        """A name like `name`."""
        base = identifier(name)
        number = self._used.get(base, 0)
        self._used[base] = number + 1
        return f"{base}_{number}"


def identifier(name: str) -> str:
    """`name` without what GLSL forbids: two underscores in a row, and its own prefix."""
    plain = re.sub(r"_+", "_", re.sub(r"\W", "_", name)).strip("_")
    return f"v_{plain}" if not plain or plain[0].isdigit() or plain.startswith("gl_") else plain


def integer(value: int, kind: str) -> str:
    """A constant of an integer type of GLSL or of bool."""
    if kind == "bool":
        return "true" if value else "false"
    if kind in ("int", "int64_t"):
        suffix = "L" if kind == "int64_t" else ""
        least = -(1 << (31 if kind == "int" else 63))
        if value == least:
            return f"({value + 1}{suffix} - 1{suffix})"
        return f"({value}{suffix})" if value < 0 else f"{value}{suffix}"
    return f"{value}{'UL' if kind == 'uint64_t' else 'u'}"


def number(value: float, kind: str) -> str:
    """A constant of a floating-point type: by its bits, unless its digits say it exactly.

    Raises
    ------
    CompileError
        If there is no such type.
    """
    plain = repr(float(value))
    exact = _PLAIN.fullmatch(plain) and (value * 1024).is_integer()
    if kind == "double":
        low, high = struct.unpack("<II", struct.pack("<d", value))
        return f"{plain}lf" if exact else f"packDouble2x32(uvec2({low:#x}u, {high:#x}u))"
    try:
        (bits,) = struct.unpack("<I", struct.pack("<f", value))
    except OverflowError:
        # Rounded to float32 it is none any more.
        bits = 0x7F7FFFFF if value > 0 else 0xFF7FFFFF
    single = f"({plain})" if exact else f"uintBitsToFloat({bits:#x}u)"
    if kind == "float":
        return single
    if kind == "float16_t":
        return f"float16_t({single})"
    raise CompileError(f"GLSL has no constants of type {kind}")

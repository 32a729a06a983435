"""What a kernel's text begins with: the types and functions that TVM's printer takes for granted.

TVM's own prologue includes the C++ library, which takes a second to compile; this one takes none.
Only the parts that a text uses are in it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_HALF: Final = re.compile(r"\b(?:half|h(?:pow|tan|atan|erf|tanh))\w*\b")
_BFLOAT: Final = re.compile(r"\bnv_bfloat16\d?\b")
_TENSOR_CORES: Final = re.compile(r"\b(?:nvcuda::)?wmma::")
_CONSTANTS: Final = {
    "CUDART_INF_F": "__int_as_float(0x7f800000)",
    "CUDART_NAN_F": "__int_as_float(0x7fc00000)",
    "CUDART_INF": "(1.0e300 * 1.0e10)",
    "CUDART_NAN": "((double)__int_as_float(0x7fc00000))",
}
# Functions of a small type that C has for float alone.
_SMALL: Final = """\
__device__ inline {t} max({t} a, {t} b) {{ return a > b ? a : b; }}
__device__ inline {t} min({t} a, {t} b) {{ return a < b ? a : b; }}
__device__ inline {t} hpow({t} x, {t} y) {{ return ({t})powf((float)x, (float)y); }}
__device__ inline {t} htan({t} x) {{ return ({t})tanf((float)x); }}
__device__ inline {t} hatan({t} x) {{ return ({t})atanf((float)x); }}
__device__ inline {t} herf({t} x) {{ return ({t})erff((float)x); }}
"""
_FOUR: Final = """\
struct alignas(8) {t}4 {{ {t} x, y, z, w; }};
__device__ inline {t}4 make_{t}4({t} x, {t} y, {t} z, {t} w) {{ return {t}4{{x, y, z, w}}; }}
"""
_PACK: Final = """\
__device__ inline unsigned __pack_{t}2({t} x, {t} y) {{
  return (unsigned)*(unsigned short*)&y << 16 | *(unsigned short*)&x;
}}
"""


@dataclass(frozen=True)
class Prologue:
    """The parts of a platform's prologue.

    Attributes
    ----------
    always
        Integers, and what is spelled otherwise.
    half, bfloat
        What defines 16-bit floats and their functions.
    tensor_cores
        What defines products of fragments.
    """

    always: str
    half: str
    bfloat: str
    tensor_cores: str = ""

    def of(self, text: str) -> str:
        """The prologue that `text` needs."""
        used = [self.always]
        used += [
            f"#define {name} {value}\n"
            for name, value in _CONSTANTS.items()
            if re.search(rf"\b{name}\b", text)
        ]
        for pattern, parts, small in (
            (_HALF, self.half, "half"),
            (_BFLOAT, self.bfloat, "nv_bfloat16"),
        ):
            if not pattern.search(text):
                continue
            used += [parts, _SMALL.format(t=small)]
            if re.search(rf"\b(?:make_)?{small}4\b", text):
                used.append(_FOUR.format(t=small))
            if f"__pack_{small}2" in text:
                used.append(_PACK.format(t=small))
        if _TENSOR_CORES.search(text):
            used.append(self.tensor_cores)
        return "".join(used)

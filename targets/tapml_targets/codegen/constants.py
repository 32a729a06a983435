"""Constants in generated C text, printed with all their digits.

TVM prints floating-point constants with seven significant digits, which moves a float32 by up to
four units in the last place and ruins a float64.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final

import numpy as np
import tvm_ffi
from tvm import tirx

_PRINTED: Final = re.compile(r"(?<![\w.])\d\.\d{6}e[+-]\d{2,3}f?(?![\w.])")
# Half constants are written as float32 and cast: the rounding to half is the compiler's.
_SINGLE: Final = ("float16", "float32", "bfloat16")


def with_exact_constants(text: str, device: Any) -> str:
    """Restore the digits that printing dropped.

    Parameters
    ----------
    text
        Source in a C dialect, generated from `device`.
    device
        The IRModule of device functions, which holds the exact values.

    Returns
    -------
    str
        `text` with every distinguishable constant printed so that it reads back exactly.
    """
    exact: dict[str, set[str]] = {}

    def note(constant: Any) -> None:
        value = abs(float(constant.value))
        if math.isfinite(value):
            single = str(constant.ty) in _SINGLE
            digits = _single(value) if single else f"{value:.16e}"
            exact.setdefault(f"{value:.6e}{'f' * single}", set()).add(digits)

    for function in device.functions.values():
        tvm_ffi.structural_walk(function.body, (tirx.FloatImm, note))

    def digits(match: re.Match[str]) -> str:
        candidates = exact.get(match[0], set())
        # Two constants that print alike cannot be distinguished: both stay as printed.
        return next(iter(candidates)) if len(candidates) == 1 else match[0]

    return _PRINTED.sub(digits, text)


def _single(value: float) -> str:
    with np.errstate(over="ignore"):
        return f"{np.float32(value):.8e}f"

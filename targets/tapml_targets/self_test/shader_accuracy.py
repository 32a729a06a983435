"""What WGSL and Vulkan allow, which is the same but for an absolute error of WGSL's tanh.

WGSL: "Accuracy of concrete floating point expressions" of its specification. Vulkan: "Precision of
core SPIR-V instructions".
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

_DIVIDE: Final = 2.5
_INVERSE_SQUARE_ROOT: Final = 2.0
_LOG: Final = 3.0
# exp(x): this many ulp and twice the operand's size.
_EXP: Final = {"float32": 3.0, "float16": 1.0}
# log(x): its absolute error where x is between 0.5 and 2.
_LOG_NEAR_ONE: Final = {"float32": 2.0**-21, "float16": 2.0**-7}


def allowed_ulp(function: str, dtype: str, x: NDArray[np.float64]) -> NDArray[np.float64] | float:
    """As :func:`tapml_targets.opencl.accuracy.allowed_ulp`, for ``float32`` and ``float16``."""
    if function == "divide":
        return _DIVIDE
    if function == "square_root":
        # Inherited from 1.0 / inverseSqrt(x).
        return _DIVIDE + _INVERSE_SQUARE_ROOT
    exp = _EXP[dtype] + 2 * np.abs(x)
    if function == "exp":
        return exp
    if function == "log":
        ulp = np.spacing(np.abs(np.log(x)).astype(dtype)).astype(np.float64)
        return np.where((x >= 0.5) & (x <= 2), _LOG_NEAR_ONE[dtype] / ulp, _LOG)
    # Inherited from sinh(x) / cosh(x), and those from sums and differences of exp(x) and exp(-x):
    # a difference of errors is larger by the size of its terms to its own.
    terms = 1 / np.tanh(np.abs(x))
    return exp * (terms + 1) + 1 + _DIVIDE

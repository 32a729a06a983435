"""Errors that HIP allows: "HIP math API" of its documentation, without fast math.

`RULES` names them in the self-test.
https://rocm.docs.amd.com/projects/HIP/en/latest/reference/math_api.html
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

RULES: Final = "HIP"
_ALLOWED: Final = {"divide": 0.5, "square_root": 0.5, "exp": 1.0, "log": 2.0, "tanh": 2.0}


def allowed_ulp(function: str, dtype: str, x: NDArray[np.float64]) -> float:
    """As :func:`tapml_targets.opencl.accuracy.allowed_ulp`."""
    return _ALLOWED[function]

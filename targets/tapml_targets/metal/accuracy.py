"""Errors that Metal allows: "Floating-point accuracy" of its shading language's specification.

With its safe mathematics, as this platform compiles; fast mathematics allows more.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

RULES: Final = "Metal"
# Division and square root are rounded correctly.
_ALLOWED: Final = {
    "float32": {"divide": 0.5, "square_root": 0.5, "exp": 4.0, "log": 4.0, "tanh": 5.0},
    "float16": {"divide": 0.5, "square_root": 0.5, "exp": 1.0, "log": 1.0, "tanh": 1.0},
}


def allowed_ulp(function: str, dtype: str, x: NDArray[np.float64]) -> float:
    """As :func:`tapml_targets.opencl.accuracy.allowed_ulp`, for ``float32`` and ``float16``."""
    return _ALLOWED[dtype][function]

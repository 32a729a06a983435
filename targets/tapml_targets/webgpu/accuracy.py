"""What WGSL allows: "Accuracy of concrete floating point expressions" of its specification."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tapml_targets.self_test import shader_accuracy

RULES: Final = "WGSL"
_TANH: Final = 1e-5


def allowed_ulp(function: str, dtype: str, x: NDArray[np.float64]) -> NDArray[np.float64] | float:
    """As :func:`tapml_targets.opencl.accuracy.allowed_ulp`, for ``float32`` and ``float16``."""
    allowed = shader_accuracy.allowed_ulp(function, dtype, x)
    if function != "tanh":
        return allowed
    # The worse of what it inherits and an absolute error, which is the larger one in float32.
    ulp = np.spacing(np.abs(np.tanh(x)).astype(dtype)).astype(np.float64)
    worse: NDArray[np.float64] = np.maximum(allowed, _TANH / ulp)
    return worse

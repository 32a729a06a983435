"""Errors that CUDA allows without fast math: its Programming Guide, "Mathematical Functions".

`RULES` names them in the self-test. https://docs.nvidia.com/cuda/cuda-c-programming-guide/
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

RULES: Final = "CUDA"
# Division and square root round as IEEE 754 says.
_ALLOWED: Final = {"divide": 0.5, "square_root": 0.5, "exp": 2.0, "log": 1.0, "tanh": 2.0}
# Half precision's functions round one of float32; log, exp and tanh are within 1 ulp.
_ALLOWED_HALF: Final = {**_ALLOWED, "exp": 1.0, "log": 1.0, "tanh": 1.0}


def allowed_ulp(function: str, dtype: str, x: NDArray[np.float64]) -> float:
    """As :func:`tapml_targets.opencl.accuracy.allowed_ulp`."""
    return (_ALLOWED_HALF if dtype == "float16" else _ALLOWED)[function]

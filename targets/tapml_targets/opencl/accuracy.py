"""Errors that OpenCL allows: "Relative error as ULPs", 7.4 of the OpenCL C specification.

`RULES` names them in the self-test.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

RULES: Final = "OpenCL"
_ALLOWED: Final = {"divide": 2.5, "square_root": 3.0, "exp": 3.0, "log": 3.0, "tanh": 5.0}


def allowed_ulp(function: str, dtype: str, x: NDArray[np.float64]) -> float:
    """The allowed error of a function in `dtype` at the operands `x`, in units in the last place.

    `function` is ``divide``, whose dividends are `x`, ``square_root``, ``exp``, ``log`` or
    ``tanh``. In OpenCL it is the same for every operand and dtype.
    """
    return _ALLOWED[function]

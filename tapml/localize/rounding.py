"""Numbers rounded to a dtype: as float64 that the dtype holds, and as the raw bits that travel."""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tapml_targets.dtype import dtype as lookup

_NARROW: Final[dict[str, Any]] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}


def rounded(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """float64 `values` rounded to `dtype`, as float64; values of other dtypes as they are."""
    narrow = _NARROW.get(dtype)
    if narrow is None:
        return values
    with np.errstate(all="ignore"):
        result: NDArray[Any] = np.asarray(values).astype(narrow).astype(np.float64)
    return result


def raw_bits(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """`values` as a tensor of `dtype` travels: bfloat16 and the float8s as unsigned integers."""
    carrier = np.dtype(lookup(dtype).numpy_name)
    narrow = _NARROW.get(dtype)
    with np.errstate(all="ignore"):
        if narrow is None:
            return np.asarray(values, dtype=carrier, order="C")
        return np.asarray(np.asarray(values).astype(narrow), order="C").view(carrier)

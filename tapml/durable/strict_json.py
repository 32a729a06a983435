"""Conversion to strict JSON, which has neither NaN nor infinity."""

from __future__ import annotations

import math
from typing import Any


def to_strict(value: Any) -> Any:
    """`value` with non-finite floats as text and tuples as lists, at any depth.

    ``float()`` reads the text back.

    >>> to_strict({"worst": (1.5, float("nan"), float("-inf"))})
    {'worst': [1.5, 'nan', '-inf']}
    """
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    if isinstance(value, dict):
        return {key: to_strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_strict(item) for item in value]
    return value

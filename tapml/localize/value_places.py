"""Wrong elements told by what they were computed from: those of negative inputs, of large ones.

An index says nothing about a table that is read as unsigned or a function that breaks beyond a
bound; the input's value does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

# Chance of meeting such a split where the values have nothing to do with it.
_CHANCE: Final = 1e-3


def describe_values(
    name: str, wrong: NDArray[np.bool_], inputs: Mapping[str, NDArray[Any]]
) -> list[str]:
    """Sentences for the inputs whose value alone decides which elements of an output are wrong.

    Parameters
    ----------
    name
        The output.
    wrong
        Which of its elements are wrong.
    inputs
        Inputs by name; those that do not broadcast to the output's shape are passed over.
    """
    found = []
    count = int(wrong.sum())
    if not 0 < count < wrong.size or _ways(wrong.size, count) < 1 / _CHANCE:
        return []
    for parameter, values in inputs.items():
        if values.size < 2 or values.dtype == np.bool_ or not _broadcasts(values, wrong):
            continue
        seen = np.broadcast_to(values, wrong.shape).astype(np.float64)
        for shown, numbers in ((parameter, seen), (f"|{parameter}|", np.abs(seen))):
            words = _split(shown, numbers, wrong)
            if words:
                found.append(f"{name}: wrong exactly where {words}")
                break
    return found


def _ways(elements: int, count: int) -> float:
    """In how many ways `count` of so many elements may be chosen, at most 1e300."""
    few = min(count, elements - count)
    logarithm = sum(math.log((elements - i) / (i + 1)) for i in range(min(few, 60)))
    return math.exp(min(logarithm, 690.0))


def _broadcasts(values: NDArray[Any], wrong: NDArray[np.bool_]) -> bool:
    if values.ndim > wrong.ndim:
        return False
    shapes = zip(reversed(values.shape), reversed(wrong.shape), strict=False)
    return all(mine in (1, whole) for mine, whole in shapes)


def _split(shown: str, numbers: NDArray[np.float64], wrong: NDArray[np.bool_]) -> str:
    """The bound that parts wrong from right elements; empty where there is none."""
    finite = np.isfinite(numbers)
    bad, good = numbers[wrong & finite], numbers[~wrong & finite]
    if not bad.size or not good.size:
        return ""
    if bad.min() > good.max():
        return f"{shown} is at least {bad.min():.6g} (elsewhere it is at most {good.max():.6g})"
    if bad.max() < good.min():
        return f"{shown} is at most {bad.max():.6g} (elsewhere it is at least {good.min():.6g})"
    return ""

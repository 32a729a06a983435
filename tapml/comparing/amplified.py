"""Whether a model amplifies rounding, so that backends part of which none is wrong.

Where no layer differs alone on equal inputs, the whole may still be far apart: a chaotic model
makes much of little. How much is measured on one backend, by moving its inputs a little.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from tapml.backends.runner import Array
from tapml.comparing.metrics import relative_deviation

UNITS: Final = 4
"""Units in the last place by which inputs are moved."""
_REPEATS: Final = 4
_MOST: Final = 16.0
"""Rounding in all layers carries no further than so many times what the inputs' motion does."""


def sensitivity(
    run: Callable[[Mapping[str, Array]], Mapping[str, Array]], inputs: Mapping[str, Array]
) -> float | None:
    """How far outputs move, over their scale, where floats among the inputs move by :data:`UNITS`.

    Parameters
    ----------
    run
        A backend: arrays by the inputs' names, to those by the outputs' names.
    inputs
        Some instances.

    Returns
    -------
    float or None
        The largest of a few seeded motions; None where no input is a float, or outputs become NaN.

    Examples
    --------
    >>> sensitivity(lambda x: {"y": x["x"] - 1}, {"x": np.full(2, 1.001, np.float32)}) > 4e-4
    True
    """
    if not any(each.dtype.kind == "f" for each in inputs.values()):
        return None
    random = np.random.default_rng(0)
    still = run(inputs)
    moved = [run({name: _moved(each, random) for name, each in inputs.items()})
             for _ in range(_REPEATS)]  # fmt: skip
    found = max(apart(still, each) for each in moved)
    return found if np.isfinite(found) else None


def apart(one: Mapping[str, Array], other: Mapping[str, Array]) -> float:
    """The largest deviation of an output over its scale, of all elements together."""
    return max(
        float(relative_deviation(*(np.asarray(each).reshape(1, -1) for each in pair)).max())
        for pair in zip(one.values(), other.values(), strict=True)
    )


def is_amplified(deviation: float, moved: float) -> bool:
    """Whether outputs so far apart are rounding, of a model with this :func:`sensitivity`."""
    return deviation <= _MOST * moved


def _moved(array: Array, random: np.random.Generator) -> Array:
    if array.dtype.kind != "f":
        return array
    signs = random.choice([-1.0, 1.0], array.shape)
    moved = array * (1 + UNITS * np.finfo(array.dtype).eps * signs)
    return np.asarray(moved, array.dtype)

"""How far a whole run moves where each operator is as wrong as its own comparison found it.

A model may amplify rounding: a variance that is left over from a cancellation, a softmax of large
scores. Two right implementations then differ in their outputs by more than any fixed tolerance, and
each of their operators agrees. So before an output is called wrong, the plan runs again with every
number off by the largest relative error that was found in its value, in random directions. A number
moves with its own size: were all moved by the largest error, a column of huge numbers or a masked
score would allow the small ones beside it to be anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tapml.plan.graph_plan import Entry
from tapml.plan.rooting_report import Rooted, is_masked
from tapml.rooting.interpreter import Functions, run_entry

Array = npt.NDArray[Any]

_RUNS: Final = 3
_MARGIN: Final = 2.0
"""Random directions are not the worst ones."""


def moved_by_errors(
    entry: Entry,
    functions: Functions,
    tensors: Mapping[str, Array],
    operators: Sequence[Rooted],
    values: Mapping[str, Array],
) -> dict[str, float]:
    """The largest change of each output that errors inside explain.

    Parameters
    ----------
    operators
        Comparisons of the values inside.
    values
        Those of the run that nothing was changed in.

    Returns
    -------
    dict
        By value name, for outputs and new state; zero where none of its numbers is finite.
    """
    random = np.random.default_rng(0)
    shares = {each.value: each.error / each.scale for each in operators if each.scale}

    def off(name: str, array: Array) -> Array:
        share = shares.get(name, 0.0)
        # Values of bfloat16 are bits, which have no size.
        if not share or not np.issubdtype(array.dtype, np.floating):
            return array
        with np.errstate(all="ignore"):
            sizes = np.maximum(np.abs(array.astype(np.float64)), _typical(array))
            signs = random.choice((-1.0, 1.0), size=array.shape)
            return np.where(np.isfinite(array), array + share * sizes * signs, array).astype(
                array.dtype
            )

    wanted = {*entry.outputs, *(binding.after for binding in entry.state)}
    moved = dict.fromkeys(wanted, 0.0)
    for _ in range(_RUNS):
        other = run_entry(entry, functions, tensors, off)
        for name in wanted:
            # Values of bfloat16 are bits, which have no difference.
            if np.issubdtype(values[name].dtype, np.floating):
                with np.errstate(all="ignore"):
                    change = np.abs(other[name].astype(np.float64) - values[name])
                found = float(change[np.isfinite(change)].max(initial=0.0))
                moved[name] = max(moved[name], _MARGIN * found)
    return moved


def _typical(array: Array) -> float:
    """What half of the numbers exceed: a smaller one may be what is left of terms of that size."""
    seen = array[np.isfinite(array) & ~is_masked(array, str(array.dtype))]
    return float(np.median(np.abs(seen))) if seen.size else 0.0

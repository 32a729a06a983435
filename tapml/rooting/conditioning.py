"""How far a whole run moves where each operator is as wrong as its own comparison found it.

A model may amplify rounding: a variance that is left over from a cancellation, a softmax of large
scores. Two right implementations then differ in their outputs by more than any fixed tolerance, and
each of their operators agrees. So before an output is called wrong, the plan runs again with every
value off by the largest error that was found there, in random directions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tapml.plan.graph_plan import Entry
from tapml.rooting.interpreter import Functions, run_entry

Array = npt.NDArray[Any]

_RUNS: Final = 3
_MARGIN: Final = 2.0
"""Random directions are not the worst ones."""


def moved_by_errors(
    entry: Entry,
    functions: Functions,
    tensors: Mapping[str, Array],
    errors: Mapping[str, float],
    values: Mapping[str, Array],
) -> dict[str, float]:
    """The largest change of each output that errors inside explain.

    Parameters
    ----------
    errors
        Largest absolute error of values inside, by name.
    values
        Those of the run that nothing was changed in.

    Returns
    -------
    dict
        By value name, for outputs and new state; zero where none of its numbers is finite.
    """
    random = np.random.default_rng(0)

    def off(name: str, array: Array) -> Array:
        error = errors.get(name, 0.0)
        if not error or not np.issubdtype(array.dtype, np.floating):
            return array
        signs = random.choice((-1.0, 1.0), size=array.shape)
        return (array + error * signs).astype(array.dtype)

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

"""Float64 result and sensitivity of one operator on one set of inputs.

How much error is honest is measured, not guessed: the operator's float64 twin runs again with every
floating-point input moved by up to one unit in the last place of its own dtype, sign and size at
random. What the result moves by is what any arithmetic in that dtype may be off by, up to a
factor that the policy bounds. Interval arithmetic was rejected (its bounds on a dot product of
length n are n wide instead of sqrt(n)), and so was the reference's own error (it is zero wherever
the reference rounds luckily, and forgives a target whatever the reference does wrong).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tapml.compare.discrete import wrong_elements
from tapml.compare.expectation import Expectation, ExpectedOutput
from tapml.compare.formats import NO_SIZE, Float64s, as_float64, float_format
from tapml.compare.index_source import find_source
from tapml.compare.judge import worst_ratio
from tapml.compare.movements import Movements
from tapml.compare.operator_class import OutputTraits, terms_of, traits_of
from tapml.compare.spread import Spread, round_up
from tapml.compare.twin_runs import (
    Case,
    Twin,
    check_counts,
    exact_and_moved,
    is_exact,
    is_float,
    moved_outputs,
    moving_dtypes,
    plain_inputs,
    run_operator,
)

__all__ = ["Case", "ElementTrace", "Twin", "expect", "run_operator", "trace_element"]

# 2**-24 of so many units is less than a thousandth of one.
_ROUNDED_RATIO: Final = 4096.0
ROUNDED_SHARE: Final = 32.0
"""Of an output computed in a wider dtype than its own: how many of the sensitivities to that wider
dtype are worth one unit of the output's, beside which they nearly vanish."""

DISCRETE_REACH: Final = {"float64": 16.0, "float32": 16.0, "float16": 4.0, "bfloat16": 4.0}
"""How many units inputs are moved by to find which integers lie near a boundary: as far as a right
kernel of that arithmetic may be off."""


def expect(case: Case, twin: Twin, movements: Movements, repeats: int) -> Expectation:
    """Run the twin once as it is and `repeats` times moved.

    Raises
    ------
    InputError
        If the case does not have one array per parameter read and per parameter written.
    """
    operator = case.operator
    check_counts(case)
    traits = traits_of(operator)
    moving = moving_dtypes(operator, traits)
    exact, moved = exact_and_moved(case, twin, movements, repeats, moving)
    spreads = [
        Spread(values, lost=lost)
        for values, lost in zip(exact, _lost(case, traits, movements), strict=True)
    ]
    done = 0
    for outputs_moved in moved:
        for spread, values in zip(spreads, outputs_moved, strict=True):
            spread.add(values)
        done += 1
    computed = [
        spread
        for spread, output in zip(spreads, traits, strict=True)
        if output.operator_class == "discrete" and output.arithmetic
    ]
    if computed:
        # An integer shows only that a number crossed a boundary, not how near one it lies.
        reach = max(DISCRETE_REACH.get(output.arithmetic, 1.0) for output in traits)
        further = range(repeats, 2 * repeats)
        for outputs_moved in moved_outputs(case, twin, movements, further, moving, reach):
            for spread, values in zip(spreads, outputs_moved, strict=True):
                if spread in computed:
                    spread.add(values)
    terms = terms_of(traits, operator, case.inputs, case.symbols)
    outputs = tuple(
        _output(case, index, spread, movements, traits[index])
        for index, spread in enumerate(spreads)
    )
    return Expectation(outputs, _estimated_terms(case) if terms is None else terms, done)


def _lost(case: Case, traits: Sequence[OutputTraits], movements: Movements) -> list[float]:
    """How much each output may lose behind a function that becomes flat; zero without one.

    What rounds there is of the size of one and multiplied afterwards, by inputs: by the largest
    one's square at most. Masks (-3e38) are no size of anything.
    """
    if not any(output.saturates for output in traits):
        return [0.0] * len(traits)
    largest = 1.0
    for parameter, values in zip(case.operator.read, plain_inputs(case, movements), strict=True):
        if is_float(parameter):
            sizes = np.abs(values)
            largest = max(largest, float(np.max(sizes, initial=0.0, where=sizes < NO_SIZE)))
    return [
        float_format(output.arithmetic or parameter.dtype).epsilon * largest**2
        if output.saturates
        else 0.0
        for output, parameter in zip(traits, case.operator.written, strict=True)
    ]


def _of_integers(case: Case, traits: OutputTraits, index: int) -> float:
    """What an output made from integers alone may lose: they are exact and cannot be moved.

    The cosine of a position times a frequency rounds its angle, which is as large as the position.
    """
    parameter = case.operator.written[index]
    if not is_float(parameter) or any(map(is_float, case.operator.read)):
        return 0.0
    sizes = [float(np.max(np.abs(raw.astype(np.float64)), initial=0.0)) for raw in case.inputs]
    return float_format(traits.arithmetic or parameter.dtype).epsilon * max([1.0, *sizes])


def _estimated_terms(case: Case) -> int:
    """The longest sum that the shapes allow: the longest axis, or inputs for each output."""
    smallest = min((raw.size for raw in case.outputs), default=1)
    terms = 1
    for raw in case.inputs:
        terms = max(terms, *raw.shape, raw.size // max(1, smallest)) if raw.ndim else terms
    return terms


def _output(
    case: Case,
    index: int,
    spread: Spread,
    movements: Movements,
    traits: OutputTraits,
) -> ExpectedOutput:
    parameter, raw = case.operator.written[index], case.outputs[index]
    kind = case.operator.output_kinds[index]
    values = spread.exact
    if is_exact(traits):
        sensitivity = np.zeros(values.shape, np.float32)
    elif traits.operator_class == "rounded":
        sensitivity = round_up(ROUNDED_SHARE * spread.sensitivity())
    else:
        sensitivity = round_up(spread.sensitivity())
    if not is_exact(traits):
        sensitivity = np.maximum(sensitivity, round_up(np.array(_of_integers(case, traits, index))))
    source = None
    if kind == "index":
        source = find_source(values, plain_inputs(case, movements))
    output = ExpectedOutput(
        parameter.name,
        parameter.dtype,
        kind,
        values,
        sensitivity,
        source,
        operator_class=traits.operator_class,
        arithmetic=traits.arithmetic,
    )
    output = with_reference_ratio(output, raw)
    # What a reference that is off by more adds is no rounding any more, and its own rounding would
    # show in the values.
    if output.is_float and output.reference_ratio <= _ROUNDED_RATIO:
        output = replace(output, values=rounded_residual(values, raw, parameter.dtype))
    return output


def with_reference_ratio(output: ExpectedOutput, raw: NDArray[Any]) -> ExpectedOutput:
    """`output` with the ratio of the reference's own result `raw` filled in."""
    if output.is_float:
        ratio = worst_ratio(output, raw)
    else:
        ratio = np.inf if wrong_elements(output, raw).any() else 0.0
    return replace(output, reference_ratio=float(ratio))


def rounded_residual(values: Float64s, raw: NDArray[Any], dtype: str) -> Float64s:
    """`values` with what they add to the reference's output `raw` rounded to float32.

    Rounding it here makes an expectation that was just computed and one read back from disk equal
    to the last bit; it loses 2**-24 of an error.
    """
    reference = as_float64(raw, dtype)
    with np.errstate(all="ignore"):
        rebuilt: Float64s = reference + (values - reference).astype(np.float32)
    return np.where(np.isfinite(rebuilt), rebuilt, values)


@dataclass(frozen=True)
class ElementTrace:
    """Where one element's sensitivity comes from.

    Attributes
    ----------
    exact
        What the float64 twin gives there.
    moved
        What it gives after each movement of the inputs.
    row_level
        What :func:`smooth` raises it to at least, for its row's sake.
    share
        Factor on the larger of both: :data:`ROUNDED_SHARE`, or one.
    """

    exact: float
    moved: tuple[float, ...]
    row_level: float
    share: float

    @property
    def root_mean_square(self) -> float:
        """How far the element itself has moved."""
        squares = [(value - self.exact) ** 2 for value in self.moved]
        return math.sqrt(sum(squares) / max(1, len(squares)))


def trace_element(
    case: Case,
    twin: Twin,
    movements: Movements,
    repeats: int,
    output: int,
    index: tuple[int, ...],
) -> ElementTrace:
    """Repeat what :func:`expect` did, for one element of a floating-point output.

    Parameters
    ----------
    repeats
        Those of the expectation; zero where nothing was moved.
    output
        Position in ``operator.written``.
    index
        Of the element; of an output without elements there is nothing to trace.
    """
    if case.outputs[output].size == 0:
        return ElementTrace(0.0, (), 0.0, 1.0)
    traits = traits_of(case.operator)
    exact, moved = exact_and_moved(
        case, twin, movements, repeats, moving_dtypes(case.operator, traits)
    )
    spread = Spread(exact[output], lost=_lost(case, traits, movements)[output])
    values = []
    for made in moved:
        spread.add(made[output])
        values.append(float(made[output][index]))
    share = ROUNDED_SHARE if traits[output].operator_class == "rounded" else 1.0
    level = float(spread.levels()[index]) if values else 0.0
    return ElementTrace(float(exact[output][index]), tuple(values), level, share)

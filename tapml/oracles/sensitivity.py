"""Float64 result and sensitivity of one operator on one set of inputs.

The acceptable error is measured: the operator's float64 twin runs again with every floating-point
input perturbed by up to one unit in the last place of its own dtype, with random sign and size. Any
arithmetic in that dtype may be off by the resulting change, up to a factor that the policy bounds.
Interval arithmetic was rejected (its bounds on a dot product of length n are n wide instead of
sqrt(n)), and so was the reference's own error (it is zero wherever the reference happens to round
well, and excuses every error that the reference makes).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tapml.oracles.twin_runs import (
    Case,
    Perturbations,
    Twin,
    check_counts,
    exact_and_perturbed,
    is_exact,
    is_float,
    perturbed_dtypes,
    perturbed_outputs,
    plain_inputs,
)
from tapml.verdicts.discrete import wrong_elements
from tapml.verdicts.expectation import Expectation, ExpectedOutput, worst_ratio
from tapml.verdicts.index_source import find_source
from tapml.verdicts.operator_class import OutputTraits, terms_of, traits_of
from tapml_targets.float_formats import NO_SIZE, Float64s, as_float64, float_format

# 2**-24 of this many units is less than a thousandth of one.
_ROUNDED_RATIO: Final = 4096.0
ROUNDED_SHARE: Final = 32.0
"""For an output computed in a wider dtype: how many sensitivities in that dtype count as one unit
of the output's own, compared with which they nearly vanish.
"""

DISCRETE_REACH: Final = {"float64": 16.0, "float32": 16.0, "float16": 4.0, "bfloat16": 4.0}
"""How many units inputs are perturbed by to find integers near a boundary: the error of a right
kernel in that arithmetic.
"""


def expect(
    case: Case, twin: Twin, perturbations: Perturbations, repeats: int, narrowest: str = ""
) -> Expectation:
    """Run the twin once on the exact inputs and `repeats` times on perturbed ones.

    `narrowest` is the least precise dtype on the way, where the operator's function does not tell.

    Raises
    ------
    InputError
        If the case does not have one array per parameter read and per parameter written.
    """
    operator = case.operator
    check_counts(case)
    traits = traits_of(operator)
    moving = perturbed_dtypes(operator, traits, narrowest)
    exact, perturbed = exact_and_perturbed(case, twin, perturbations, repeats, moving)
    spreads = [
        Spread(values, lost=lost)
        for values, lost in zip(exact, _lost(case, traits, perturbations), strict=True)
    ]
    done = 0
    for outputs_moved in perturbed:
        for spread, values in zip(spreads, outputs_moved, strict=True):
            spread.add(values)
        done += 1
    computed = [
        spread
        for spread, output in zip(spreads, traits, strict=True)
        if output.operator_class == "discrete" and output.arithmetic
    ]
    if computed:
        # An integer shows only that a number crossed a boundary, not its distance from it.
        reach = max(DISCRETE_REACH.get(output.arithmetic, 1.0) for output in traits)
        further = range(repeats, 2 * repeats)
        for outputs_moved in perturbed_outputs(
            case, twin, perturbations, further, moving, exact, reach
        ):
            for spread, values in zip(spreads, outputs_moved, strict=True):
                if spread in computed:
                    spread.add(values)
    terms = terms_of(traits, operator, case.inputs, case.symbols)
    outputs = tuple(
        _output(case, index, spread, perturbations, traits[index])
        for index, spread in enumerate(spreads)
    )
    return Expectation(outputs, _estimated_terms(case) if terms is None else terms, done)


def _lost(case: Case, traits: Sequence[OutputTraits], perturbations: Perturbations) -> list[float]:
    """How much each output may lose behind a function that saturates; zero without one.

    The values rounded there are about one and are multiplied by inputs afterwards, at most by the
    square of the largest. Masks (-3e38) are not counted.
    """
    if not any(output.saturates for output in traits):
        return [0.0] * len(traits)
    largest = 1.0
    for parameter, values in zip(
        case.operator.read, plain_inputs(case, perturbations), strict=True
    ):
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
    """What an output computed only from integers may lose: they are exact and cannot be perturbed.

    The cosine of a position times a frequency rounds its angle, which is as large as the position.
    """
    parameter = case.operator.written[index]
    if not is_float(parameter) or any(map(is_float, case.operator.read)):
        return 0.0
    sizes = [float(np.max(np.abs(raw.astype(np.float64)), initial=0.0)) for raw in case.inputs]
    return float_format(traits.arithmetic or parameter.dtype).epsilon * max([1.0, *sizes])


def _estimated_terms(case: Case) -> int:
    """The longest sum that the shapes allow: the longest axis, or inputs per output."""
    smallest = min((raw.size for raw in case.outputs), default=1)
    terms = 1
    for raw in case.inputs:
        terms = max(terms, *raw.shape, raw.size // max(1, smallest)) if raw.ndim else terms
    return terms


def _output(
    case: Case,
    index: int,
    spread: Spread,
    perturbations: Perturbations,
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
        source = find_source(values, plain_inputs(case, perturbations))
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
    # A larger difference is not rounding, and storing it rounded would change the values.
    if output.is_float and output.reference_ratio <= _ROUNDED_RATIO:
        output = replace(output, values=rounded_residual(values, raw, parameter.dtype))
    return output


def with_reference_ratio(output: ExpectedOutput, raw: NDArray[Any]) -> ExpectedOutput:
    """`output` with the ratio of the reference's own result `raw`."""
    if output.is_float:
        ratio = worst_ratio(output, raw)
    else:
        ratio = np.inf if wrong_elements(output, raw).any() else 0.0
    return replace(output, reference_ratio=float(ratio))


def rounded_residual(values: Float64s, raw: NDArray[Any], dtype: str) -> Float64s:
    """`values` with their difference from the reference's output `raw` rounded to float32.

    With this a new expectation equals one read from disk to the last bit. It costs 2**-24 of an
    error.
    """
    reference = as_float64(raw, dtype)
    with np.errstate(all="ignore"):
        rebuilt: Float64s = reference + (values - reference).astype(np.float32)
    return np.where(np.isfinite(rebuilt), rebuilt, values)


@dataclass(frozen=True)
class ElementTrace:
    """The components of one element's sensitivity.

    Attributes
    ----------
    exact
        The float64 twin's value.
    perturbed
        Its value after each perturbation of the inputs.
    row_level
        The minimum from :func:`row_levels`.
    share
        Factor on the larger of the two: :data:`ROUNDED_SHARE`, or one.
    """

    exact: float
    perturbed: tuple[float, ...]
    row_level: float
    share: float

    @property
    def root_mean_square(self) -> float:
        """Root mean square change of the element itself."""
        squares = [(value - self.exact) ** 2 for value in self.perturbed]
        return math.sqrt(sum(squares) / max(1, len(squares)))


def trace_element(
    case: Case,
    twin: Twin,
    perturbations: Perturbations,
    repeats: int,
    output: int,
    index: tuple[int, ...],
) -> ElementTrace:
    """Repeat :func:`expect` for one element of a floating-point output.

    Parameters
    ----------
    repeats
        Those of the expectation; zero if nothing was perturbed.
    output
        Position in ``operator.written``.
    index
        Index of the element; an output without elements has nothing to trace.
    """
    if case.outputs[output].size == 0:
        return ElementTrace(0.0, (), 0.0, 1.0)
    traits = traits_of(case.operator)
    exact, perturbed = exact_and_perturbed(
        case, twin, perturbations, repeats, perturbed_dtypes(case.operator, traits)
    )
    spread = Spread(exact[output], lost=_lost(case, traits, perturbations)[output])
    values = []
    for made in perturbed:
        spread.add(made[output])
        values.append(float(made[output][index]))
    share = ROUNDED_SHARE if traits[output].operator_class == "rounded" else 1.0
    level = float(spread.levels()[index]) if values else 0.0
    return ElementTrace(float(exact[output][index]), tuple(values), level, share)


_ROW_ELEMENTS: Final = 16
_ROW_SHARE: Final = 0.5
_MOST_RAISED: Final = 32.0
_SAMPLED: Final = 1 << 16


class Spread:
    """How far one output has changed from its exact values, over the perturbations so far.

    `lost` is how much a function that saturates may lose on the way: see :func:`row_levels`.
    """

    def __init__(self, exact: NDArray[Any], *, lost: float = 0.0) -> None:
        self.exact = exact
        self._lost = lost
        self.count = 0
        self._squares = np.zeros(exact.shape)

    def add(self, perturbed: NDArray[Any]) -> None:
        """Count one more perturbation."""
        self.count += 1
        with np.errstate(all="ignore"):
            if self.exact.dtype == np.float64:
                change = np.asarray(perturbed - self.exact)
            else:
                change = np.asarray(perturbed.astype(np.float64) - self.exact.astype(np.float64))
            np.square(change, out=change)
            if not np.isfinite(change.sum()):
                change[~np.isfinite(change)] = 0.0
            if self.exact.dtype == np.float64:
                self._squares += change
            else:
                np.maximum(self._squares, change, out=self._squares)

    def sensitivity(self) -> Float64s:
        """Root mean square change (largest, for integers), shape of the output."""
        if self.exact.dtype != np.float64:
            return np.sqrt(self._squares)
        return np.maximum(self.root_mean_square(), self.levels())

    def levels(self) -> Float64s:
        """Minimum sensitivity of each element, from its row."""
        return row_levels(self.root_mean_square(), lost=self._lost)

    def root_mean_square(self) -> Float64s:
        """Change of each element, before :meth:`levels`."""
        return np.sqrt(self._squares / max(1, self.count))


def row_levels(sensitivity: Float64s, *, lost: float = 0.0) -> Float64s:
    """Minimum sensitivity of each element: half of its row's root mean square.

    With a few perturbations one element in thousands hardly changes by chance. A row is the last
    axis, joined with those before it until it has 16 elements. A change over thirty times smaller
    than the row's in three perturbations is not chance: such an element is raised to thirty times
    itself, so that masked attention scores (-1e9) do not affect their neighbours.

    That is too little if a function saturates (tanh, erf, exp): in the far tail of a GELU 1 + tanh
    is only rounding, about one in size, which no perturbation of the input shows. There an element
    is raised to `lost`, but not to the change of an exponential of 60.

    Parameters
    ----------
    sensitivity
        Root mean square change of each element, of any shape.
    lost
        What a function that saturates may lose on the way; zero without one.

    Returns
    -------
    numpy.ndarray
        float64, shape of `sensitivity`.
    """
    if sensitivity.size == 0:
        return sensitivity
    elements = 1
    for extent in reversed(sensitivity.shape):
        elements *= extent
        if elements >= _ROW_ELEMENTS:
            break
    rows = sensitivity.reshape(-1, elements)
    with np.errstate(all="ignore"):
        level = np.sqrt(np.mean(np.square(rows), axis=1, keepdims=True)) * _ROW_SHARE
        level = np.where(np.isfinite(level), level, 0.0)
        if lost:
            # An entire row may lie in the tail, such as a dead channel of an image.
            some = rows.reshape(-1)[:: max(1, rows.size // _SAMPLED)]
            level = np.maximum(level, np.median(some) * _ROW_SHARE)
        level = np.minimum(level, np.maximum(_MOST_RAISED * rows, lost))
    return np.broadcast_to(level, rows.shape).reshape(sensitivity.shape)


def round_up(sensitivity: Float64s) -> NDArray[np.float32]:
    """`sensitivity` as float32 with 8 significant bits, rounded up: two bytes on disk."""
    with np.errstate(all="ignore"):
        narrow = np.minimum(sensitivity, 1e38).astype(np.float32)
    bits = narrow.view(np.uint32)
    return ((bits + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)).view(np.float32)

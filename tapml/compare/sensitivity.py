"""Float64 result and sensitivity of one operator on one set of inputs.

How much error is honest is measured, not guessed: the operator's float64 twin runs again with every
floating-point input moved by up to one unit in the last place of its own dtype, sign and size at
random. What the result moves by is what any arithmetic in that dtype may be off by, up to a
factor that the policy bounds. Interval arithmetic was rejected (its bounds on a dot product of
length n are n wide instead of sqrt(n)), and so was the reference's own error (it is zero wherever
the reference rounds luckily, and forgives a target whatever the reference does wrong).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tapml.compare.discrete import wrong_elements
from tapml.compare.expectation import Expectation, ExpectedOutput
from tapml.compare.formats import Float64s, as_float64, float_format
from tapml.compare.index_source import find_source
from tapml.compare.judge import worst_ratio
from tapml.compare.movements import Movements
from tapml.compare.operator_class import OutputTraits, terms_of, traits_of
from tapml.graph.plan import Operator
from tapml_targets.dtype import dtype as lookup
from tapml_targets.errors import InputError
from tapml_targets.library import Parameter

Twin = Callable[..., None]
"""``twin(*arrays, symbols=...)``: arrays in parameter order, float64 in place of every float."""

_ROW_ELEMENTS: Final = 16
_ROW_SHARE: Final = 0.5
_MOST_RAISED: Final = 32.0
# 2**-24 of so many units is less than a thousandth of one.
_ROUNDED_RATIO: Final = 4096.0
ROUNDED_SHARE: Final = 32.0
"""Of an output computed in a wider dtype than its own: how many of the sensitivities to that wider
dtype are worth one unit of the output's, beside which they nearly vanish."""


@dataclass(frozen=True)
class Case:
    """Raw inputs and reference outputs of one carved test.

    `keys` name inputs that other tests share by content; None for those of this test alone.
    """

    operator: Operator
    inputs: Sequence[NDArray[Any]]
    outputs: Sequence[NDArray[Any]]
    symbols: Mapping[str, int]
    keys: Sequence[str | None]


def expect(case: Case, twin: Twin, movements: Movements, repeats: int) -> Expectation:
    """Run the twin once as it is and `repeats` times moved.

    Raises
    ------
    InputError
        If the case does not have one array per parameter read and per parameter written.
    """
    operator = case.operator
    _check_counts(case)
    traits = traits_of(operator)
    plain = [
        movements.values(raw, parameter.dtype, key) if _is_float(parameter) else raw
        for parameter, raw, key in zip(operator.read, case.inputs, case.keys, strict=True)
    ]
    exact = _run(case, twin, plain)
    spreads = [_Spread(values) for values in exact]
    done = 0
    moving = _moving(operator, traits)
    if moving:
        units = [
            None if dtype is None else movements.units(values, dtype, key)
            for dtype, values, key in zip(moving, plain, case.keys, strict=True)
        ]
        for done in range(1, repeats + 1):
            moved = [
                values
                if dtype is None or unit is None
                else movements.moved(values, unit, dtype, position, done - 1, key)
                for position, (dtype, values, unit, key) in enumerate(
                    zip(moving, plain, units, case.keys, strict=True)
                )
            ]
            for spread, values in zip(spreads, _run(case, twin, moved), strict=True):
                spread.add(values)
    terms = terms_of(traits, operator, case.inputs, case.symbols)
    outputs = tuple(
        _output(case, index, spread, plain, traits[index]) for index, spread in enumerate(spreads)
    )
    return Expectation(outputs, _estimated_terms(case) if terms is None else terms, done)


def _moving(operator: Operator, traits: Sequence[OutputTraits]) -> list[str | None]:
    """Per parameter read the dtype whose last place it is moved by; empty where none need be.

    An input that is exact in the arithmetic that reads it (a float16 weight of a sum in float32)
    moves by that arithmetic's last place: nothing on the way loses more.
    """
    if all(output.operator_class == "exact" for output in traits):
        return []
    arithmetic = min((t.arithmetic for t in traits if t.arithmetic), key=_bits, default="")
    moving = [
        max(parameter.dtype, arithmetic or parameter.dtype, key=_bits)
        if _is_float(parameter)
        else None
        for parameter in operator.read
    ]
    return moving if any(moving) else []


def _bits(dtype: str) -> int:
    return float_format(dtype).mantissa_bits


def _check_counts(case: Case) -> None:
    operator = case.operator
    for what, parameters, arrays in (
        ("inputs", operator.read, case.inputs),
        ("outputs", operator.written, case.outputs),
    ):
        if len(parameters) != len(arrays):
            raise InputError(
                f"{operator.name}: expected {len(parameters)} {what}, the test has {len(arrays)}"
            )


def _is_float(parameter: Parameter) -> bool:
    return lookup(parameter.dtype).is_float


def _run(case: Case, twin: Twin, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Outputs of the twin on `inputs`, in the order of ``operator.written``."""
    outputs = [
        np.empty(like.shape, np.float64 if _is_float(parameter) else like.dtype)
        for parameter, like in zip(case.operator.written, case.outputs, strict=True)
    ]
    return run_operator(case.operator, twin, inputs, outputs, case.symbols)


def run_operator(
    operator: Operator,
    function: Twin,
    inputs: Sequence[NDArray[Any]],
    outputs: Sequence[NDArray[Any]],
    symbols: Mapping[str, int],
) -> list[NDArray[Any]]:
    """Call an operator's function.

    Parameters
    ----------
    function
        Called like :class:`tapml.compiler.reference.ReferenceFunction`.
    inputs
        One array per parameter read; those updated in place are copied first.
    outputs
        One array per parameter written, filled in place where it is not updated.

    Returns
    -------
    list
        What was written, in the order of ``operator.written``.
    """
    remaining, places = iter(inputs), iter(outputs)
    arguments: list[NDArray[Any]] = []
    written: list[NDArray[Any]] = []
    for parameter in operator.parameters:
        if parameter.role == "input":
            arguments.append(np.asarray(next(remaining), order="C"))
            continue
        array = next(places)
        if parameter.role == "inout":
            array = np.array(next(remaining), order="C")
        arguments.append(array)
        written.append(array)
    function(*arguments, symbols=symbols)
    return written


class _Spread:
    """How far one output has moved from its exact values, over the movements so far."""

    def __init__(self, exact: NDArray[Any]) -> None:
        self.exact = exact
        self.count = 0
        self._squares = np.zeros(exact.shape)

    def add(self, moved: NDArray[Any]) -> None:
        """Count one more movement."""
        self.count += 1
        with np.errstate(all="ignore"):
            if self.exact.dtype == np.float64:
                change = np.asarray(moved - self.exact)
            else:
                change = np.asarray(moved.astype(np.float64) - self.exact.astype(np.float64))
            np.square(change, out=change)
            if not np.isfinite(change.sum()):
                change[~np.isfinite(change)] = 0.0
            if self.exact.dtype == np.float64:
                self._squares += change
            else:
                np.maximum(self._squares, change, out=self._squares)

    def sensitivity(self) -> Float64s:
        """Root mean square movement (largest, for integers), shape of the output."""
        if self.exact.dtype != np.float64:
            return np.sqrt(self._squares)
        return smooth(np.sqrt(self._squares / max(1, self.count)))


def smooth(sensitivity: Float64s) -> Float64s:
    """Raise elements that hardly moved by accident to half of their row's root mean square.

    With a few movements one element in thousands nearly stands still. A row is the last axis,
    joined with those before it until it has 16 elements. What moves over thirty times less than its
    row is no accident, three movements in a row: it is raised to thirty times itself, so that the
    masked scores of an attention (-1e9) do not speak for those beside them.
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
        level = np.minimum(np.where(np.isfinite(level), level, 0.0), _MOST_RAISED * rows)
    smoothed: Float64s = np.maximum(rows, level)
    return smoothed.reshape(sensitivity.shape)


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
    spread: _Spread,
    inputs: Sequence[NDArray[Any]],
    traits: OutputTraits,
) -> ExpectedOutput:
    parameter, raw = case.operator.written[index], case.outputs[index]
    kind = case.operator.output_kinds[index]
    values = spread.exact
    if traits.operator_class == "exact":
        sensitivity = np.zeros(values.shape, np.float32)
    elif traits.operator_class == "rounded":
        sensitivity = round_up(ROUNDED_SHARE * spread.sensitivity())
    else:
        sensitivity = round_up(spread.sensitivity())
    source = None
    if kind == "index":
        source = find_source(values, inputs)
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


def round_up(sensitivity: Float64s) -> NDArray[np.float32]:
    """`sensitivity` as float32 with 8 significant bits, rounded up: two bytes on disk."""
    with np.errstate(all="ignore"):
        narrow = np.minimum(sensitivity, 1e38).astype(np.float32)
    bits = narrow.view(np.uint32)
    return ((bits + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)).view(np.float32)

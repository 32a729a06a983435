"""Runs an operator's float64 twin on a test's inputs, as they are and moved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tapml.compare.formats import Float64s, float_format
from tapml.compare.movements import Movements
from tapml.compare.operator_class import OutputTraits
from tapml.graph.plan import Operator
from tapml_targets.dtype import dtype as lookup
from tapml_targets.errors import InputError
from tapml_targets.library import Parameter

Twin = Callable[..., None]
"""``twin(*arrays, symbols=...)``: arrays in parameter order, float64 in place of every float."""


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


def plain_inputs(case: Case, movements: Movements) -> list[NDArray[Any]]:
    """The inputs as the twin takes them."""
    return [
        movements.values(raw, parameter.dtype, key) if is_float(parameter) else raw
        for parameter, raw, key in zip(case.operator.read, case.inputs, case.keys, strict=True)
    ]


def exact_and_moved(
    case: Case,
    twin: Twin,
    movements: Movements,
    repeats: int,
    moving: Sequence[str | None],
) -> tuple[list[NDArray[Any]], Iterator[list[NDArray[Any]]]]:
    """The twin's outputs on the inputs as they are, and on the moved ones, one movement a time."""
    exact = run_twin(case, twin, plain_inputs(case, movements))
    return exact, moved_outputs(case, twin, movements, range(repeats), moving)


def moved_outputs(
    case: Case,
    twin: Twin,
    movements: Movements,
    repeats: Iterable[int],
    moving: Sequence[str | None],
    reach: float = 1.0,
) -> Iterator[list[NDArray[Any]]]:
    """The twin's outputs on inputs moved by up to `reach` of their units, one movement a time.

    `repeats` are the movements' numbers; those of different reach must differ.
    """
    if not moving:
        return
    plain = plain_inputs(case, movements)
    units = [
        None if dtype is None else _scaled(movements.units(values, dtype, key), reach)
        for dtype, values, key in zip(moving, plain, case.keys, strict=True)
    ]
    for repeat in repeats:
        inputs = [
            values
            if dtype is None or unit is None
            else movements.moved(values, unit, dtype, position, repeat, key)
            for position, (dtype, values, unit, key) in enumerate(
                zip(moving, plain, units, case.keys, strict=True)
            )
        ]
        yield run_twin(case, twin, inputs)


def _scaled(units: Float64s, reach: float) -> Float64s:
    return units if reach == 1.0 else reach * units


def is_exact(output: OutputTraits) -> bool:
    """Whether an output is the same in any arithmetic: numbers moved, compared or rounded."""
    is_discrete = output.operator_class == "discrete"
    return output.operator_class == "exact" or (is_discrete and not output.arithmetic)


def moving_dtypes(operator: Operator, traits: Sequence[OutputTraits]) -> list[str | None]:
    """Per parameter read the dtype whose last place it is moved by; empty where none need be.

    An input that is exact in the arithmetic that reads it (a float16 weight of a sum in float32)
    moves by that arithmetic's last place: nothing on the way loses more.
    """
    if all(is_exact(output) for output in traits):
        return []
    arithmetic = min((t.arithmetic for t in traits if t.arithmetic), key=_bits, default="")
    moving = [
        max(parameter.dtype, arithmetic or parameter.dtype, key=_bits)
        if is_float(parameter)
        else None
        for parameter in operator.read
    ]
    return moving if any(moving) else []


def _bits(dtype: str) -> int:
    return float_format(dtype).mantissa_bits


def check_counts(case: Case) -> None:
    """Refuse a case that does not have one array per parameter.

    Raises
    ------
    InputError
        Which of them are too many or too few.
    """
    operator = case.operator
    for what, parameters, arrays in (
        ("inputs", operator.read, case.inputs),
        ("outputs", operator.written, case.outputs),
    ):
        if len(parameters) != len(arrays):
            raise InputError(
                f"{operator.name}: expected {len(parameters)} {what}, the test has {len(arrays)}"
            )


def is_float(parameter: Parameter) -> bool:
    """Whether a parameter holds floating-point numbers."""
    return lookup(parameter.dtype).is_float


def run_twin(case: Case, twin: Twin, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Outputs of the twin on `inputs`, in the order of ``operator.written``."""
    outputs = [
        np.empty(like.shape, np.float64 if is_float(parameter) else like.dtype)
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

"""Range probes: large numbers for operators that take exponentials.

A softmax that does not subtract its maximum, ``exp(x) / (1 + exp(x))`` for a sigmoid, a tanh made
of exponentials: each is right on the numbers of a few prompts and gives NaN on the first large one
(section IV-D of the paper). So an operator that takes an exponential is replayed on numbers beyond
the range of the exponential as well. What must come out is float64's result, to a few units in the
last place of its largest element; there is no probe where the reference itself does not give it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from tapml.compare.expectation import ExpectedOutput
from tapml.compare.formats import Float64s, ulp
from tapml.compare.function_tree import FunctionTree
from tapml.compare.judge import judge
from tapml.compare.movements import Movements
from tapml.compare.oracle import CarvedCase
from tapml.compare.policy import Policy
from tapml.compare.probes import ProbeCase, to_raw
from tapml.compare.sensitivity import Case, expect
from tapml.compare.twin_runs import Twin, run_operator
from tapml.graph.plan import Operator
from tapml_targets.dtype import dtype as lookup

_EXPONENTIALS: Final = frozenset(
    {"exp", "exp2", "exp10", "expm1", "sigmoid", "tanh", "sinh", "cosh", "erf"}
)
# exp(120) is beyond float32 and bfloat16, exp(20) beyond float16: for what a reference in float16
# cannot do at 120.
_LARGEST: Final = (120.0, 20.0)
_SEED: Final = 1861
# Of the largest element of an output: OpenCL's five for tanh, and rounding on the way.
_UNITS: Final = 8.0
# Downwards not as far: approximations of exp, the reference's among them, stop short of its end.
_DOWNWARDS: Final = 0.5
# Of so many rows one has no large number: all of its exponentials nearly vanish.
_ROWS: Final = 4


def takes_exponentials(operator: Operator) -> bool:
    """Whether an operator's function, as far as it can be looked into, takes an exponential."""
    tree = FunctionTree.parse(operator.function)
    if tree is None or len(tree.parameters) < len(operator.parameters):
        return False
    return any(
        tree.calls(store.value) & _EXPONENTIALS
        for buffer, parameter in zip(tree.parameters, operator.parameters, strict=False)
        if parameter.role != "input"
        for store in tree.stores_behind(buffer) or ()
    )


def range_probe_of(
    operator: Operator, test: CarvedCase, twin: Twin, reference: Twin
) -> ProbeCase | None:
    """A probe beside a carved test: its shapes, integers and symbols, and large numbers.

    Parameters
    ----------
    operator
        The operator of `test`.
    twin, reference
        The operator in float64 and in its own dtypes, called like
        :class:`tapml.compiler.reference.ReferenceFunction`.

    Returns
    -------
    ProbeCase or None
        None where the operator takes no exponential or the reference fails on it.

    Raises
    ------
    InputError
        If the test does not fit the operator.
    """
    floats = [parameter for parameter in operator.read if lookup(parameter.dtype).is_float]
    if not floats or not takes_exponentials(operator):
        return None
    for largest in _LARGEST:
        probe = _probe(operator, test, twin, reference, largest)
        if probe is not None:
            return probe
    return None


def _probe(
    operator: Operator, test: CarvedCase, twin: Twin, reference: Twin, largest: float
) -> ProbeCase | None:
    """The probe with numbers up to `largest`; None where the reference fails on it."""
    policy = Policy()
    inputs = [
        to_raw(spiked(raw.shape, largest, _SEED + position), parameter.dtype)
        if lookup(parameter.dtype).is_float
        else raw
        for position, (parameter, raw) in enumerate(
            zip(operator.read, test.read_inputs(), strict=True)
        )
    ]
    outputs = [np.zeros_like(raw) for raw in test.read_outputs()]
    results = run_operator(operator, reference, inputs, outputs, test.symbols)
    case = Case(operator, inputs, results, test.symbols, [None] * len(inputs))
    expectation = expect(case, twin, Movements(policy.seed), policy.appeal_repeats)
    if judge(operator, expectation, None, results, policy).status != "pass":
        return None
    return ProbeCase(
        f"{test.id}/probe-range",
        operator.name,
        dict(test.symbols),
        tuple(inputs),
        tuple(results),
        replace(expectation, outputs=tuple(map(_coarse, expectation.outputs))),
    )


def _coarse(output: ExpectedOutput) -> ExpectedOutput:
    """`output` counted in units of its largest element: what overflows is off by more than that.

    Where a function saturates float64 gives zero or next to nothing, and a right tanh that is off
    by one unit in its last place (OpenCL allows five) gives any multiple of it.
    """
    if not output.is_float:
        return output
    finite = np.abs(output.values[np.isfinite(output.values)])
    unit = _UNITS * float(ulp(np.array(finite.max(initial=0.0)), output.dtype))
    return replace(output, sensitivity=np.maximum(output.sensitivity, np.float32(unit)))


def spiked(shape: Sequence[int], largest: float, seed: int) -> Float64s:
    """Numbers below zero with a large one in most rows, each in another place.

    Whole numbers: every dtype holds them.
    """
    generator = np.random.Generator(np.random.SFC64(seed))
    lowest = np.floor(_DOWNWARDS * largest)
    values: Float64s = -np.rint(lowest * generator.random(tuple(shape)))
    rows = values.reshape(-1, shape[-1]) if shape and values.size else values.reshape(-1, 1)
    for number, row in enumerate(rows):
        if number % _ROWS == _ROWS - 1:
            np.minimum(row, 4.0 - lowest, out=row)
        else:
            # The last place is the one that tails and the halves of a reduction lose.
            place = int(generator.integers(0, row.size)) if number else row.size - 1
            row[place] = largest - number % 3
    return values

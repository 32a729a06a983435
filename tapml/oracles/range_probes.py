"""Range probes: large inputs for operators with exponentials.

A softmax that does not subtract its maximum, ``exp(x) / (1 + exp(x))`` for a sigmoid, a tanh made
of exponentials: each is right on the inputs of a few prompts and gives NaN on the first large one
(section IV-D of the paper). So operators with exponentials are also replayed on inputs beyond the
range of the exponential. The result must be float64's, to a few units in the last place of its
largest element. There is no probe if the reference itself fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from tapml.oracles.carved_case import CarvedCase
from tapml.oracles.probes import ProbeCase, to_raw
from tapml.oracles.sensitivity import expect
from tapml.oracles.twin_runs import Case, Perturbations, Twin, run_operator
from tapml.plan.graph_plan import Operator
from tapml.verdicts.expectation import ExpectedOutput
from tapml.verdicts.function_tree import FunctionTree
from tapml.verdicts.judge import judge
from tapml.verdicts.policy import Policy
from tapml_targets.dtype import dtype as lookup
from tapml_targets.float_formats import Float64s, ulp

_EXPONENTIALS: Final = frozenset(
    {"exp", "exp2", "exp10", "expm1", "sigmoid", "tanh", "sinh", "cosh", "erf"}
)
# exp(120) overflows float32 and bfloat16. exp(20) overflows float16, whose reference may fail at
# 120.
_LARGEST: Final = (120.0, 20.0)
_SEED: Final = 1861
# In ulp of the largest element of an output: OpenCL's five for tanh, and rounding.
_UNITS: Final = 8.0
# Less far down: approximations of exp, the reference's included, end before the range does.
_DOWNWARDS: Final = 0.5
# One row in this many has no large number, so that all of its exponentials nearly vanish.
_ROWS: Final = 4


def takes_exponentials(operator: Operator) -> bool:
    """Whether an operator's function is known to compute an exponential."""
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
    """Derive a probe with large numbers from a carved test.

    Parameters
    ----------
    operator
        The operator of `test`.
    twin, reference
        The operator in float64 and in its own dtypes, called like
        :class:`tapml.compiler.reference_module.ReferenceFunction`.

    Returns
    -------
    ProbeCase or None
        None if the operator has no exponential or the reference fails.

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
    """The probe with numbers up to `largest`; None if the reference fails."""
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
    expectation = expect(case, twin, Perturbations(policy.seed), policy.appeal_repeats)
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
    """`output` with errors counted in units of its largest element, which an overflow exceeds.

    If a function saturates, float64 gives almost zero, and a right tanh that is off by one unit in
    its last place (OpenCL allows five) gives any multiple of it.
    """
    if not output.is_float:
        return output
    finite = np.abs(output.values[np.isfinite(output.values)])
    unit = _UNITS * float(ulp(np.array(finite.max(initial=0.0)), output.dtype))
    return replace(output, sensitivity=np.maximum(output.sensitivity, np.float32(unit)))


def spiked(shape: Sequence[int], largest: float, seed: int) -> Float64s:
    """Negative numbers with a large one in most rows, at varying positions.

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
            # Tails and tree reductions lose the last position.
            place = int(generator.integers(0, row.size)) if number else row.size - 1
            row[place] = largest - number % 3
    return values

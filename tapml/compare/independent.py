"""The third oracle: what torch's own operations give in float64, beside the operator's twin.

Reference, target and twin are all made from the imported function. A fault of the import or of the
legalisation is in all three, so they agree on what is not the model. The torch sub-graph shares
nothing with them but the inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tapml.compare.discrete import wrong_elements
from tapml.compare.expectation import (
    Expectation,
    ExpectedOutput,
    IndependentCheck,
    IndependentOutput,
)
from tapml.compare.formats import NO_SIZE, as_float64
from tapml.compare.independent_run import run_subgraph, torch_is_installed
from tapml.compare.ratios import float_errors
from tapml.graph.plan import Operator
from tapml.graph.torch_subgraph import form_at
from tapml_targets.dtype import dtype as lookup
from tapml_targets.errors import InputError
from tapml_targets.library import Parameter

NO_TORCH: Final = "torch is not installed"

AGREEMENT: Final = 2.0
"""Bound on |torch - twin| / (sensitivity + ulp) where both compute in float64.

They differ by float64's own rounding, 1e-9 to 1e-6 of a unit however the operator is conditioned,
for sensitivity amplifies as the operator does; and by constants of the legalisation that were
rounded to the operator's dtype (the square root of a half in GELU), each half a unit at most.
"""
_FLOAT64_ROUNDING: Final = 2.0**-46
_EXACT_AGREEMENT: Final = 0.25
_FLOAT64_AGREEMENT: Final = 128.0


def check_independently(
    operator: Operator,
    site: str,
    symbols: Mapping[str, int],
    inputs: Sequence[NDArray[Any]],
    reference: Sequence[NDArray[Any]],
    expectation: Expectation,
) -> IndependentCheck:
    """Run an operator's torch sub-graph on the inputs of one test.

    Parameters
    ----------
    operator
        Its ``torch_forms`` hold the sub-graphs.
    site
        The call site, which chooses among them.
    symbols
        Shape symbols of the call site's entry, and the integers the operator takes.
    inputs, reference
        Raw inputs, and raw outputs of the reference.
    expectation
        The float64 twin's values and the sensitivities.
    """
    if not operator.torch_forms:
        return IndependentCheck(reason="the plan was not made from a torch program")
    form = form_at(operator.torch_forms, site)
    if form is None:
        return IndependentCheck(
            reason=f"the model writes it in {len(operator.torch_forms)} ways, and of which one "
            f"{site!r} is, is not known"
        )
    if form.subgraph is None:
        return IndependentCheck(reason=form.reason)
    if not torch_is_installed():
        return IndependentCheck(reason=NO_TORCH)
    try:
        values = run_subgraph(form.subgraph, operator.parameters, inputs, reference, symbols)
    except InputError as error:
        return IndependentCheck(reason=str(error))
    noise = _noise(operator.read, inputs)
    return IndependentCheck(
        tuple(
            _output(want, own, raw, noise)
            for want, own, raw in zip(expectation.outputs, values, reference, strict=True)
        )
    )


def _noise(parameters: Sequence[Parameter], inputs: Sequence[NDArray[Any]]) -> float:
    """What float64 itself may lose on the way: a few of its units at the largest input.

    Where the result is the rest of a cancellation (the far tail of a GELU is 1 + tanh) it is all
    rounding, and moving the inputs does not show it. Masks (-3e38) are no size of anything.
    """
    largest = 0.0
    for parameter, raw in zip(parameters, inputs, strict=True):
        if lookup(parameter.dtype).is_float and raw.size:
            sizes = np.abs(as_float64(raw, parameter.dtype))
            largest = max(largest, float(np.max(sizes, initial=0.0, where=sizes < NO_SIZE)))
    return _FLOAT64_ROUNDING * largest


def agreement_bound(want: ExpectedOutput) -> float:
    """How far torch and twin may honestly be apart on an output, in units of its scale."""
    if not want.is_float:
        return 0.0
    if want.operator_class == "exact":
        return _EXACT_AGREEMENT
    # The unit itself is float64's rounding: this is any two right kernels' distance.
    return _FLOAT64_AGREEMENT if want.dtype == "float64" else AGREEMENT


def _output(
    want: ExpectedOutput, own: NDArray[Any], raw: NDArray[Any], noise: float
) -> IndependentOutput:
    bound = agreement_bound(want)
    as_torch = replace(want, values=own)
    twin_ratio = _distance(_with_noise(want, noise), own)
    return IndependentOutput(
        twin_ratio,
        _distance(as_torch, as_float64(raw, want.dtype) if want.is_float else raw),
        bound,
        own if twin_ratio > bound else None,
    )


def _with_noise(want: ExpectedOutput, noise: float) -> ExpectedOutput:
    if not want.is_float or want.operator_class == "exact":
        return want
    return replace(want, sensitivity=want.sensitivity + np.float32(noise))


def _distance(want: ExpectedOutput, got: NDArray[Any]) -> float:
    if want.is_float:
        return float(float_errors(want, got).max(initial=0.0))
    return float(np.inf) if wrong_elements(want, got).any() else 0.0

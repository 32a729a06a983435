"""The third oracle: torch's own operations in float64, independent of the operator's twin.

Reference, target and twin are all made from the imported function. A fault in import or
legalisation affects all three, so they agree on a wrong result. The torch sub-graph shares only the
inputs with them.

Torch starts slowly, and one of its operations costs as much as a small operator, so not every test
is checked. Torch and the importer differ on all tests of an operator or on none, so the first test
of each call shape represents the others. If it differs, every test is checked. A test is always
checked before a target is blamed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tapml.oracles.carved_case import CarvedCase
from tapml.oracles.expectation_store import ExpectationStore
from tapml.oracles.torch_oracle_run import run_subgraph, torch_is_installed
from tapml.plan.graph_plan import Operator
from tapml.plan.torch_subgraph import form_at
from tapml.verdicts.discrete import wrong_elements
from tapml.verdicts.expectation import (
    Expectation,
    ExpectedOutput,
    IndependentCheck,
    IndependentOutput,
    float_errors,
)
from tapml_targets.dtype import dtype as lookup
from tapml_targets.errors import InputError
from tapml_targets.float_formats import NO_SIZE, as_float64
from tapml_targets.installed import versions_text
from tapml_targets.library import Parameter

AGREEMENT: Final = 2.0
"""Bound on |torch - twin| / (sensitivity + ulp) where both compute in float64.

They differ by float64's own rounding, 1e-9 to 1e-6 of a unit for any conditioning, because
sensitivity amplifies as the operator does; and by constants of the legalisation that were rounded
to the operator's dtype (sqrt(1/2) in GELU), each by half a unit at most.
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
        Operator whose ``torch_forms`` hold the sub-graphs.
    site
        The call site, which chooses among them.
    symbols
        Shape symbols of the call site's entry, and the operator's integers.
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
        return IndependentCheck(reason="torch is not installed", torch_missing=True)
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
    """What float64 itself may lose on the way: a few of its ulp at the largest input.

    A result left over from a cancellation (1 + tanh in the far tail of a GELU) is only rounding,
    which perturbed inputs do not show. Masks (-3e38) are not counted.
    """
    largest = 0.0
    for parameter, raw in zip(parameters, inputs, strict=True):
        if lookup(parameter.dtype).is_float and raw.size:
            sizes = np.abs(as_float64(raw, parameter.dtype))
            largest = max(largest, float(np.max(sizes, initial=0.0, where=sizes < NO_SIZE)))
    return _FLOAT64_ROUNDING * largest


def agreement_bound(want: ExpectedOutput) -> float:
    """The largest acceptable difference of torch and twin on an output, in units of its scale."""
    if not want.is_float:
        return 0.0
    if want.operator_class == "exact":
        return _EXACT_AGREEMENT
    # The unit itself is float64's rounding, so this is the distance of any two right kernels.
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


class IndependentChecks:
    """Adds torch's result to the expectations that are to be checked.

    Parameters
    ----------
    store
        Remembers which operators agreed.
    versions
        Other dependencies of an agreement.
    """

    def __init__(self, store: ExpectationStore, versions: Sequence[object]) -> None:
        self._store = store
        self._versions = [*versions, versions_text("torch")]
        self._agreed: set[str] = set()
        self._form_keys: dict[tuple[str, str], str] = {}

    def add(
        self,
        test: CarvedCase,
        operator: Operator,
        expectation: Expectation,
        outputs: Sequence[NDArray[Any]],
        *,
        must: bool,
    ) -> Expectation:
        """`expectation` with torch's own result, if this test is to be checked.

        Parameters
        ----------
        expectation
            Of the test; returned unchanged if it already holds a check.
        outputs
            The reference's raw outputs.
        must
            Whether to check the test regardless of the results of others.
        """
        if expectation.independent is not None:
            return expectation
        # Only carved tests know their entry's symbols; other tests derive them from shapes.
        symbols = {**getattr(test, "shape_symbols", {}), **test.symbols}
        shapes = [raw.shape for raw in outputs]
        form = self.form_key(operator, test)
        key = digest(["check", *self._versions, form, sorted(symbols.items()), shapes])
        if not must and self._is_agreed(key):
            return expectation
        check = check_independently(
            operator, _site(test), symbols, test.read_inputs(), outputs, expectation
        )
        if check.agrees:
            self._store.write(key, b"")
        if check.agrees or not check.available:
            self._agreed.add(key)
        return replace(expectation, independent=check)

    def form_key(self, operator: Operator, test: CarvedCase) -> str:
        """Key of the computation of twin and torch at the call site of a test."""
        site = _site(test)
        known = self._form_keys.get((operator.name, site))
        if known is None:
            form = form_at(operator.torch_forms, site)
            subgraph = repr(None if form is None else form.subgraph)
            known = digest([operator.hash, operator.output_kinds, subgraph])
            self._form_keys[operator.name, site] = known
        return known

    def _is_agreed(self, key: str) -> bool:
        if key not in self._agreed and self._store.has(key):
            self._agreed.add(key)
        return key in self._agreed


def digest(content: Sequence[object]) -> str:
    """SHA-256 of plain data, hexadecimal."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _site(test: CarvedCase) -> str:
    """The call site of a test: its id without the trailing run of a carved test."""
    site, separator, _ = test.id.rpartition("@")
    return site if separator else test.id

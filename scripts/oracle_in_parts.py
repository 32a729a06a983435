"""The float64 oracle of a shape with a large weight, a part of the weight at a time.

In float64, with its units and a perturbed copy, a weight takes six times its own memory. No row of
a product's weight has an effect on another column of the output, so the expected output of some
rows is that of a smaller product. All elements of the output are computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import get_ident
from typing import Any, Final, Self

import numpy as np
import torch
from numpy.typing import NDArray

from scripts.configuration_shapes import Arrays, Shape
from tapml.compiler.twin import compile_twins
from tapml.importing.importer import import_module
from tapml.importing.module import Module
from tapml.oracles.carved_case import CarvedCase
from tapml.oracles.oracle import Oracle
from tapml.plan.graph_plan import Operator
from tapml.validation.observed import ObservedTensor, ObservedTest
from tapml.verdicts.expectation import Expectation, IndependentCheck
from tapml.verdicts.policy import Policy
from tapml_targets.errors import InputError

_WEIGHT: Final = "weight"


class _Layer(torch.nn.Module):
    """A shape with its weights."""

    def __init__(self, shape: Shape, weights: Arrays) -> None:
        super().__init__()
        self._function = shape.function
        self.weights = torch.nn.ParameterList(
            torch.nn.Parameter(torch.from_numpy(each), requires_grad=False) for each in weights
        )

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """What the function gives."""
        return self._function(*inputs, *self.weights)


def imported(shape: Shape, inputs: Arrays, weights: Arrays) -> Module:
    """A shape as a plan with these weights, which are not copied."""
    example = [torch.from_numpy(each) for each in inputs]
    made = import_module(_Layer(shape, weights).eval(), example)
    return Module(made.plan, weights=made.weights)


class OracleInParts:
    """Expectations of a shape's tests; a context manager.

    Parameters
    ----------
    shape
        A product or an embedding.
    operators
        Those of its plan. What reads no weight has a whole oracle.
    nbytes
        Of a part's weight.
    policy
        Of the expectations.
    threads
        How many parts are computed at a time.
    """

    def __init__(
        self,
        shape: Shape,
        operators: Mapping[str, Operator],
        nbytes: int,
        policy: Policy,
        *,
        threads: int = 1,
    ) -> None:
        self._shape, self._nbytes, self._policy = shape, nbytes, policy
        self._whole = Oracle(operators, compile_twins, policy)
        self._pool = ThreadPoolExecutor(threads)
        self._operators: dict[Shape, dict[str, Operator]] = {}
        # An oracle computes one expectation at a time, so that every thread has its own.
        self._oracles: dict[tuple[int, Shape], Oracle] = {}
        self._found: dict[tuple[str, bool], Expectation] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
        self._whole.close()
        for oracle in self._oracles.values():
            oracle.close()

    def expect(self, test: CarvedCase) -> Expectation:
        """As :meth:`tapml.oracles.oracle.Oracle.expect` does."""
        return self._known(test, appeals=False)

    def appeal(self, test: CarvedCase) -> Expectation:
        """As :meth:`tapml.oracles.oracle.Oracle.appeal` does."""
        return self._known(test, appeals=True)

    def _known(self, test: CarvedCase, *, appeals: bool) -> Expectation:
        key = test.key, appeals
        if key not in self._found:
            self._found[key] = self._joined(test, appeals=appeals)
        return self._found[key]

    def _joined(self, test: CarvedCase, *, appeals: bool) -> Expectation:
        is_weight = [each.lifetime == _WEIGHT for each in test.inputs]
        if not any(is_weight):
            return self._whole.appeal(test) if appeals else self._whole.expect(test)
        read = test.read_inputs()
        inputs = [each for each, weight in zip(read, is_weight, strict=True) if not weight]
        weights = [each for each, weight in zip(read, is_weight, strict=True) if weight]
        futures = []
        parts = self._shape.parts(inputs, weights, test.read_outputs(), self._nbytes)
        for number, (shape, given, rows, outputs) in enumerate(parts):
            if shape not in self._operators:
                plan = imported(shape, shape.draw_inputs(), rows).plan
                self._operators[shape] = dict(plan.operators)
            left = {True: iter(rows), False: iter(given)}
            asked = ObservedTest(
                id=test.id,
                operator=test.operator,
                symbols=test.symbols,
                # No part is read twice, so none is kept.
                inputs=[ObservedTensor("", "input") for _ in is_weight],
                key=f"{test.key} {number}",
                arrays_read=tuple(next(left[weight]) for weight in is_weight),
                arrays_written=tuple(outputs),
            )
            futures.append(self._pool.submit(self._part, shape, asked, appeals=appeals))
        return _whole(test.id, [each.result() for each in futures])

    def _part(self, shape: Shape, test: ObservedTest, *, appeals: bool) -> Expectation:
        key = get_ident(), shape
        oracle = self._oracles.get(key)
        if oracle is None:
            oracle = Oracle(self._operators[shape], compile_twins, self._policy)
            self._oracles[key] = oracle
        return oracle.appeal(test) if appeals else oracle.expect(test)


def _whole(test: str, parts: Sequence[Expectation]) -> Expectation:
    """The expectation of which these are the parts, along the output's last axis."""
    checks = [each.independent for each in parts if each.independent is not None]
    if any(each.available and not each.agrees for each in checks):
        raise InputError(f"{test}: torch in float64 and the float64 twin differ")
    outputs = tuple(
        replace(
            own[0],
            values=_joined_arrays([each.values for each in own]),
            sensitivity=_joined_arrays([each.sensitivity for each in own]),
            reference_ratio=max(each.reference_ratio for each in own),
        )
        for own in zip(*(each.outputs for each in parts), strict=True)
    )
    check: IndependentCheck | None = checks[0] if checks else None
    return replace(parts[0], outputs=outputs, independent=check)


def _joined_arrays(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(arrays, axis=-1)

"""Selects the tests to simulate: one of each shape, the smallest first."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import TypeAlias

from tapml.oracles.carved_case import CarvedCase
from tapml.plan.graph_plan import Operator
from tapml.suite.carved_test import CarvedTest
from tapml_targets.dtype import dtype

Shapes: TypeAlias = tuple[tuple[int, ...], ...]


def case_shapes(test: CarvedCase) -> Shapes:
    """Shapes of a test's inputs, then of its outputs."""
    if isinstance(test, CarvedTest):
        # Known without reading the tensors.
        return tuple(record.shape for record in (*test.inputs, *test.outputs))
    return tuple(array.shape for array in (*test.read_inputs(), *test.read_outputs()))


def case_bytes(test: CarvedCase, operator: Operator) -> int:
    """Bytes of a test's inputs and outputs."""
    parameters = (*operator.read, *operator.written)
    return sum(
        dtype(parameter.dtype).nbytes(prod(shape))
        for parameter, shape in zip(parameters, case_shapes(test), strict=True)
    )


def chosen(tests: Iterable[CarvedCase], operator: Operator) -> tuple[list[CarvedCase], int]:
    """The smallest test of each shape and symbols, and the number of other tests."""
    first: dict[object, CarvedCase] = {}
    count = 0
    for test in tests:
        count += 1
        first.setdefault((case_shapes(test), tuple(sorted(test.symbols.items()))), test)
    choice = sorted(first.values(), key=lambda test: case_bytes(test, operator))
    return choice, count - len(choice)

"""Which functions LLVM may not reassociate on which processors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax

from tapml.compiler.reference import compile_reference
from tapml_targets.codegen.host_schedule import (
    cpu_target,
    is_slow_to_reassociate,
    schedule_for_host,
)
from tapml_targets.codegen.lowering import load_function
from tapml_targets.codegen.source import OperatorSource
from tests.oracles.operators import make_operator

op = relax.op


def rows(x: Any) -> Any:
    """The sum of each row."""
    return op.sum(x, axis=[1])


def is_slow(build: Callable[..., Any], dtype: str, processor: str) -> bool:
    operator = make_operator("it", [((4, 96), dtype)], build)
    source = OperatorSource("it", operator.function_for("cpu"), operator.parameters)
    return is_slow_to_reassociate(schedule_for_host(load_function(source)), cpu_target(processor))


@pytest.mark.parametrize(
    ("build", "dtype", "processor", "slow"),
    [
        (rows, "float16", "x86-64-v3", True),
        (rows, "float16", "znver4", True),
        (rows, "float16", "sapphirerapids", False),  # it adds halves
        (rows, "float32", "x86-64-v3", False),
        (lambda x: op.exp(op.add(x, x)), "float16", "x86-64-v3", False),
    ],
)
def test_sums_of_halves_are_not_reassociated_where_each_addition_is_one_in_float32(
    build: Callable[..., Any], dtype: str, processor: str, slow: bool
) -> None:
    assert is_slow(build, dtype, processor) is slow


def test_reassociated_and_other_functions_share_a_module() -> None:
    operators = [
        make_operator(f"sum_{dtype}", [((4, 96), dtype)], rows) for dtype in ("float16", "float32")
    ]
    compiled = compile_reference(operators)
    assert not compiled.failures
    for dtype in ("float16", "float32"):
        output = np.zeros(4, dtype)
        compiled[f"sum_{dtype}"](np.ones((4, 96), dtype), output)
        assert np.array_equal(output, np.full(4, 96, dtype))

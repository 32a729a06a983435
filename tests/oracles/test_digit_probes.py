"""Numbers of all digits: where they stay exact they must come out exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax

from tapml.compiler.reference import compile_reference
from tapml.compiler.twin import compile_twins
from tapml.oracles.probes import ProbeCase, digit_probe_of
from tapml.oracles.probing import is_probe
from tapml.verdicts.judge import judge
from tapml.verdicts.policy import Policy
from tapml_targets.float_formats import as_float64
from tests.oracles.cases import make_case
from tests.oracles.operators import make_operator

op = relax.op
ROWS, COLUMNS = 6, 40


def damped_distance(x: Any, y: Any) -> Any:
    return op.multiply(op.abs(op.subtract(x, y)), relax.const(0.25, x.ty.dtype))


def probe_of(dtype: str, build: Callable[..., Any], inputs: int) -> tuple[Any, ProbeCase | None]:
    operator = make_operator("tried", [((ROWS, COLUMNS), dtype)] * inputs, build)
    reference = compile_reference([operator])
    generator = np.random.default_rng(3)
    arrays = [generator.standard_normal((ROWS, COLUMNS)).astype("float16") for _ in range(inputs)]
    if dtype == "bfloat16":
        arrays = [(a.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) for a in arrays]
    case = make_case(operator, reference, arrays)
    twin = compile_twins([operator])[operator.name]
    return operator, digit_probe_of(operator, case, twin, reference[operator.name])


@pytest.mark.parametrize(("dtype", "first"), [("float16", 1024), ("bfloat16", 128)])
@pytest.mark.parametrize(
    ("build", "inputs"), [(op.subtract, 2), (op.add, 2), (op.multiply, 2), (damped_distance, 2)]
)
def test_a_probe_uses_every_digit_and_is_exact(
    dtype: str, first: int, build: Callable[..., Any], inputs: int
) -> None:
    operator, probe = probe_of(dtype, build, inputs)
    assert probe is not None
    assert is_probe(f"prompt0@{probe.id}")
    numbers = as_float64(probe.arrays[0], dtype)
    assert numbers.min() >= first
    assert (numbers < 2 * first).all()
    assert (numbers % 2 == 1).all()
    verdict = judge(operator, probe.expectation, probe.results, probe.results, Policy())
    assert (verdict.status, verdict.worst_ratio) == ("pass", 0.0)


def test_a_difference_that_is_off_in_its_last_digit_fails() -> None:
    """Section II-B of the paper: 1035 - 1031 became 5."""
    operator, probe = probe_of("float16", op.subtract, 2)
    assert probe is not None
    minuend, subtrahend = probe.read_inputs()
    coarse = np.round(minuend.astype(np.float64) / 2 + 0.25) * 2
    wrong = (coarse - subtrahend.astype(np.float64)).astype(np.float16)
    assert np.abs(wrong - probe.results[0]).max() == 1
    verdict = judge(operator, probe.expectation, probe.results, [wrong], Policy())
    assert verdict.status == "fail"


@pytest.mark.parametrize(
    "build",
    [
        op.divide,
        lambda x, y: op.sqrt(op.add(x, y)),
        lambda x, y: op.exp(op.subtract(x, y)),
        lambda x, y: op.sum(op.multiply(x, y), axis=-1),
        lambda x, y: op.multiply(op.multiply(x, y), relax.const(0.1, x.ty.dtype)),
        op.maximum,
    ],
    ids=["quotient", "root", "exponential", "sum", "tenth", "nothing computed"],
)
def test_there_is_none_where_a_right_kernel_may_round(build: Callable[..., Any]) -> None:
    _, probe = probe_of("float16", build, 2)
    assert probe is None


def test_a_zero_result_is_no_probe() -> None:
    _, probe = probe_of("float16", lambda x: op.subtract(x, x), 1)
    assert probe is None

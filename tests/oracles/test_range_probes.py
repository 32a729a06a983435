"""Large numbers for operators that take exponentials: right kernels pass, unsafe forms do not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from tvm import relax

from tapml.compiler.reference import compile_reference
from tapml.compiler.twin import compile_twins
from tapml.oracles.probes import ProbeCase
from tapml.oracles.probing import is_probe
from tapml.oracles.range_probes import range_probe_of, spiked, takes_exponentials
from tapml.plan.graph_plan import Operator
from tapml.verdicts.judge import judge
from tapml.verdicts.policy import Policy
from tests.oracles.cases import make_case
from tests.oracles.operators import make_operator

op = relax.op
ROWS, COLUMNS = 8, 40


def gate(x: Any, y: Any) -> Any:
    return op.multiply(op.nn.silu(x), y)


def tanh_from_exponentials(x: Any) -> Any:
    twice = op.exp(op.add(x, x))
    one = relax.const(1.0, x.ty.dtype)
    return op.divide(op.subtract(twice, one), op.add(twice, one))


def one_from_exponentials(x: Any) -> Any:
    large = op.exp(op.multiply(x, relax.const(10.0, x.ty.dtype)))
    return op.divide(large, large)


def made(dtype: str, build: Callable[..., Any], inputs: int = 1) -> Operator:
    return make_operator("tried", [((ROWS, COLUMNS), dtype)] * inputs, build)


def probe_of(operator: Operator) -> ProbeCase | None:
    only: Iterable[Operator] = [operator]
    reference = compile_reference(only)
    small = np.random.default_rng(3).standard_normal((ROWS, COLUMNS))
    inputs = [small.astype(parameter.dtype) for parameter in operator.read]
    case = make_case(operator, reference, inputs)
    twin = compile_twins(only)[operator.name]
    return range_probe_of(operator, case, twin, reference[operator.name])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("build", "inputs"), [(op.nn.softmax, 1), (gate, 2), (op.tanh, 1)])
def test_what_takes_an_exponential_has_a_probe_beyond_its_range(
    dtype: str, build: Callable[..., Any], inputs: int
) -> None:
    operator = made(dtype, build, inputs)
    probe = probe_of(operator)
    assert probe is not None
    assert is_probe(probe.id)
    largest = max(float(np.abs(array.astype(np.float64)).max()) for array in probe.arrays)
    assert largest >= (18 if build is gate and dtype == "float16" else 89)
    verdict = judge(operator, probe.expectation, None, probe.results, Policy())
    assert verdict.status == "pass"


def test_a_softmax_that_subtracts_nothing_fails_on_it() -> None:
    operator = made("float32", op.nn.softmax)
    probe = probe_of(operator)
    assert probe is not None
    with np.errstate(all="ignore"):
        powers = np.exp(probe.arrays[0])
        unsafe = powers / powers.sum(-1, keepdims=True)
    verdict = judge(operator, probe.expectation, None, [unsafe], Policy())
    assert verdict.status == "fail"
    assert "nan" in verdict.reason


def test_a_tanh_that_stops_short_of_one_is_no_fault() -> None:
    def gelu(x: Any, y: Any) -> Any:
        return op.multiply(op.nn.gelu_tanh(x), y)

    probe = probe_of(made("float32", gelu, 2))
    assert probe is not None
    x, y = (array.astype(np.float64) for array in probe.arrays)
    inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    # What PoCL gives for every large negative number: one unit in the last place above -1.
    tanh = np.clip(np.tanh(inner), -1 + 2.0**-24, 1 - 2.0**-24)
    honest = (0.5 * x * (1 + tanh) * y).astype(np.float32)
    assert judge(made("float32", gelu, 2), probe.expectation, None, [honest], Policy()).status == (
        "pass"
    )


def test_a_reference_that_overflows_gets_smaller_numbers() -> None:
    probe = probe_of(made("float32", tanh_from_exponentials))
    assert probe is not None
    assert probe.arrays[0].max() == 20


def test_a_reference_that_overflows_on_those_gets_none() -> None:
    assert probe_of(made("float32", one_from_exponentials)) is None


@pytest.mark.parametrize(("build", "inputs"), [(op.add, 2), (op.sin, 1), (op.permute_dims, 1)])
def test_what_takes_none_has_no_probe(build: Callable[..., Any], inputs: int) -> None:
    operator = made("float32", build, inputs)
    assert not takes_exponentials(operator)
    assert probe_of(operator) is None


def test_most_rows_have_one_large_number_and_some_have_none() -> None:
    values = spiked((2, 4, 50), 120.0, 5).reshape(-1, 50)
    large = (values > 0).sum(axis=1)
    assert large.tolist() == [1, 1, 1, 0] * 2
    assert (values[3::4] <= -56).all()
    assert values.min() >= -60
    assert len(set(np.argmax(values[large == 1], axis=1))) > 1

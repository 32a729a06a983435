"""The first NaN of a real kernel's output is traced to its input element, step and hazard."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tapml.compiler.compiler import Compiler
from tapml.diagnosis.evaluation import Evaluation
from tapml.diagnosis.failure_context import FailureContext
from tapml.diagnosis.hazards import events_in
from tapml.diagnosis.inner_step import FoundStep, find_step
from tapml.diagnosis.nonfinite import find_origin
from tapml.diagnosis.reading import read_steps
from tapml.failures.diagnosis import NonFiniteOrigin
from tapml_rpc.client import Session
from tapml_rpc.local import open_local
from tapml_targets.driver import DeviceDescription
from tapml_targets.library import CodeModule, Library
from tests.diagnosis.failing import UNSTABLE_TANH, Failing, fail, in_one, normal, operator_of


@pytest.fixture(scope="module")
def session(pocl: DeviceDescription) -> Iterator[Session]:
    with open_local(pocl) as opened:
        yield opened


def trace(failing: Failing) -> tuple[NonFiniteOrigin, FoundStep | None, list[str]]:
    context = FailureContext(
        failing.failure, failing.session, failing.compile, time.monotonic() + 300
    )
    with np.errstate(all="ignore"):
        found = find_step(context)
        origin = find_origin(context, found)
    assert origin is not None
    return origin, found, context.notes


def faulty(operator: Any, library: Library) -> Library:
    """The library with the paper's tanh."""
    (module,) = library.modules
    return replace(library, modules=(CodeModule("opencl-c", UNSTABLE_TANH.encode() + module.code),))


def test_the_papers_gelu_is_traced_to_the_input_beyond_its_limit(
    session: Session, compiler: Compiler
) -> None:
    values = normal(2, 6, 50)
    values[1, 2, 3] = 10.5
    gelu = operator_of(torch.nn.GELU(approximate="tanh"), values)
    origin, found, _ = trace(fail(gelu, [values], faulty, session, compiler))
    assert found is not None
    assert (found.step.name, found.step.found) == ("tanh", "refined kernel")
    assert "as (exp(2 x) - 1) / (exp(2 x) + 1) in float32" in found.step.mistake
    assert (origin.output, origin.index) == ("output_0", (1, 2, 3))
    assert math.isnan(origin.value)
    assert (origin.parameter, origin.parameter_index) == ("input_0", (1, 2, 3))
    assert origin.parameter_value == pytest.approx(10.5)
    assert (origin.step, origin.hazard) == ("tanh", "tanh overflow")
    assert origin.argument > 88.7
    assert "overflows float32, whose limit is 88.72" in origin.sentence
    assert "without which the device gives a number there" in origin.sentence


def test_zero_over_zero_is_traced_to_the_zero(session: Session, compiler: Compiler) -> None:
    values = np.abs(normal(4, 30)) + 0.5
    values[2, 17] = 0.0
    operator = operator_of(lambda a: a / (a + 1e-6), values)
    change = in_one(operator, r"9\.9\d+e-07f", "0.0f")
    origin, found, notes = trace(fail(operator, [values], change, session, compiler))
    assert found is not None
    assert found.step.mistake == "leaves out 1e-06 in input_0[i, j] + 1e-06", notes
    assert (origin.step, origin.hazard) == ("divide", "0/0")
    assert (origin.parameter, origin.parameter_index) == ("input_0", (2, 17))


def test_the_logarithm_of_a_negative_is_traced(session: Session, compiler: Compiler) -> None:
    values = np.linspace(0.6, 3.0, 120, dtype=np.float32).reshape(4, 30)
    values[3, 1] = 0.25
    operator = operator_of(lambda a: torch.log(a + 0.5) * 2.0, values)
    change = in_one(operator, r"5\.0+e-01f", "-0.5f")
    origin, found, _ = trace(fail(operator, [values], change, session, compiler))
    assert found is not None
    assert found.step.name == "add"
    assert (origin.step, origin.hazard) == ("log", "log of a negative")
    assert origin.argument == pytest.approx(-0.25)
    assert (origin.parameter_index, origin.parameter_value) == ((3, 1), 0.25)


def test_a_row_of_zeros_in_a_normalisation_is_traced(session: Session, compiler: Compiler) -> None:
    values = normal(5, 24)
    values[3] = 0.0
    weight, bias = normal(24, seed=1), normal(24, seed=2)
    operator = operator_of(
        lambda x, w, b: torch.nn.functional.layer_norm(x, (24,), w, b), values, weight, bias
    )
    change = in_one(operator, r"9\.9\d+e-06f", "0.0f")
    origin, _, _ = trace(fail(operator, [values, weight, bias], change, session, compiler))
    assert (origin.step, origin.hazard) == ("layer_norm", "rsqrt of zero")
    assert (origin.parameter, origin.parameter_index[0]) == ("input_0", 3)


def test_without_steps_the_device_is_asked_which_element_it_is(
    session: Session, compiler: Compiler
) -> None:
    values = normal(4, 30)
    values[1, 7] = 60.0
    operator = operator_of(torch.nn.GELU(approximate="tanh"), values)
    failing = fail(operator, [values], faulty, session, compiler)
    bare = replace(failing.failure, operator=replace(operator, function="", body=None))
    origin, found, _ = trace(replace(failing, failure=bare))
    assert found is None
    assert (origin.parameter, origin.parameter_index) == ("input_0", (1, 7))
    assert (origin.step, origin.hazard) == ("", "")
    assert "without which the device gives a number there" in origin.sentence


def test_a_nan_of_the_carved_data_is_not_the_targets_fault(
    session: Session, compiler: Compiler
) -> None:
    values = normal(4, 30)
    values[2, 5] = np.nan
    operator = operator_of(lambda a: a * 2.0 + 1.0, values)
    change = in_one(operator, r"2\.0+e\+00f", "3.0f")
    origin, _, _ = trace(fail(operator, [values], change, session, compiler))
    assert origin.is_carved
    assert (origin.parameter, origin.parameter_index) == ("input_0", (2, 5))
    assert "not the target's fault" in origin.sentence


@pytest.mark.parametrize(
    ("function", "value", "hazard"),
    [
        (torch.exp, 89.0, "exp overflow"),
        (torch.tanh, -45.0, "tanh overflow"),
        (torch.sigmoid, 90.0, "sigmoid overflow"),
        (torch.log, -1.0, "log of a negative"),
        (torch.log, 0.0, "log of zero"),
        (torch.sqrt, -1e-9, "sqrt of a negative"),
        (torch.rsqrt, 0.0, "rsqrt of zero"),
        (lambda a: 3.0 / a, 0.0, "x/0"),
        (lambda a: torch.sin(a) / a, 0.0, "0/0"),
        (lambda a: a / (a * 1e-39), 1.0, "division by a subnormal number"),
        (lambda a: a * 3e38, 2.0, "overflow of a product"),
        (lambda a: a * 1e38 + 2e38, 3.0, "overflow of a sum"),
        (lambda a: torch.exp(a) - torch.exp(a + 1.0), 100.0, "exp overflow"),
        (lambda a: a.to(torch.int32) + 1, 1e12, "invalid conversion"),
        (lambda a: torch.log((a + 1e6) - 1e6), 0.01, "log of zero"),
        (torch.acos, 1.5, "acos beyond one"),
        (lambda a: (a * a).sum(), 1.8e19, "overflow of a sum"),
    ],
)
def test_each_hazard_is_known_by_its_condition(
    function: Callable[..., Any], value: float, hazard: str
) -> None:
    values = np.full((2, 3), 0.7, np.float32)
    operator = operator_of(function, values)
    steps = read_steps(operator).steps

    def hazards(values: Any) -> list[str]:
        evaluation = Evaluation(steps, {"input_0": values}, {}, own_precision=True)
        places = np.zeros(1, np.int64)
        return [e.hazard for step in steps.steps for e in events_in(evaluation, step, places)]

    with np.errstate(all="ignore"):
        assert hazards(np.full((2, 3), np.float64(np.float32(value))))[0] == hazard
        if hazard != "division by a subnormal number":
            assert hazards(values.astype(np.float64)) == []


def test_sixteen_bits_overflow_sooner() -> None:
    operator = operator_of(lambda a: a * 300.0, np.ones((2, 3), np.float16))
    steps = read_steps(operator).steps
    for value, expected in ((200.0, []), (220.0, ["overflow of a product"])):
        known = {"input_0": np.full((2, 3), value)}
        evaluation = Evaluation(steps, known, {})
        found = events_in(evaluation, steps.steps[0], np.zeros(1, np.int64))
        assert [event.hazard for event in found] == expected

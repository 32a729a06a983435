"""An operator's steps one after another take the operator's place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from tapml.compiler.compiler import Compiler
from tapml.compiler.unfused import is_fused, unfused
from tapml.replaying.replayer import replay_operator
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import CompileError
from tests.hazards.carving import Carved, carved, platform
from tests.hazards.modules import WIDTH, GeluPerceptron


@pytest.fixture(scope="module")
def perceptron() -> Iterator[Carved]:
    hidden = np.random.default_rng(4).standard_normal((5, WIDTH)).astype(np.float32)
    with carved(GeluPerceptron().eval(), hidden) as kept:
        yield kept


def test_the_steps_give_what_the_operator_gives(
    perceptron: Carved, pocl: DeviceDescription, compiler: Compiler
) -> None:
    operator = perceptron.plan.operators["fused_matmul_transposed_add_gelu_tanh"]
    assert is_fused(operator)
    with platform(pocl, compiler) as on:
        library = unfused(operator, lambda step: on.compile(step, {}))
        assert len(library.operators) == 3
        own = [test for test in perceptron.tests if test.operator == operator.name]
        verdict = replay_operator(
            operator, own, library, on.session, perceptron.oracle, perceptron.policy
        )
    assert verdict.status == "pass", verdict.reason


def test_a_step_may_have_the_operator_s_name(
    perceptron: Carved, pocl: DeviceDescription, compiler: Compiler
) -> None:
    operator = replace(
        perceptron.plan.operators["fused_matmul_transposed_add_gelu_tanh"], name="add"
    )
    with platform(pocl, compiler) as on:
        library = unfused(operator, lambda step: on.compile(step, {}))
    assert "add" in library.entries
    assert "add/add" in library.operators


def test_a_single_step_has_nothing_to_take_apart(perceptron: Carved) -> None:
    operator = replace(next(iter(perceptron.plan.operators.values())), body=None)
    assert not is_fused(operator)
    with pytest.raises(CompileError, match="is a single step"):
        unfused(operator, lambda step: pytest.fail("nothing is compiled"))

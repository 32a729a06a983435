"""Planted mistakes in kernels that run on a real device: the right step and mistake are named."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch

from tapml.compiler.compiler import Compiler
from tapml.diagnosis.failure_context import FailureContext
from tapml.diagnosis.inner_step import FoundStep, find_step
from tapml.plan.graph_plan import Operator
from tapml_rpc.client import Session
from tapml_rpc.local import open_local
from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import CompileError
from tapml_targets.library import Library
from tests.diagnosis.failing import (
    Change,
    Failing,
    edited,
    fail,
    in_one,
    normal,
    operator_of,
    wherever,
)

SECONDS = 300.0


@pytest.fixture(scope="module")
def session(pocl: DeviceDescription) -> Iterator[Session]:
    with open_local(pocl) as opened:
        yield opened


@pytest.fixture(scope="module")
def gate() -> Operator:
    """silu(a) * b: sigmoid, multiply, multiply."""
    arrays = normal(3, 5, 100), normal(3, 5, 100)
    return operator_of(lambda a, b: torch.nn.functional.silu(a) * b, *arrays)


@pytest.fixture(scope="module")
def root() -> Operator:
    """a / sqrt(mean(a * a) + 1e-6) from the squares: mean, add, rsqrt, multiply."""
    return operator_of(lambda s: s * torch.rsqrt(s.mean(-1, keepdim=True) + 1e-6), normal(6, 40))


def scene_of(failing: Failing, seconds: float = SECONDS) -> FailureContext:
    deadline = time.monotonic() + seconds
    return FailureContext(failing.failure, failing.session, failing.compile, deadline)


def look(failing: Failing, seconds: float = SECONDS) -> tuple[FoundStep | None, FailureContext]:
    context = scene_of(failing, seconds)
    with np.errstate(all="ignore"):
        return find_step(context), context


def planted(operator: Operator, change: Change, session: Session, compiler: Compiler) -> Failing:
    shapes = [[int(n) for n in p.shape if isinstance(n, int)] for p in operator.read]
    arrays = [np.abs(normal(*shape, seed=i)) + 0.1 for i, shape in enumerate(shapes)]
    return fail(operator, arrays, change, session, compiler)


@pytest.mark.parametrize(
    ("pattern", "replacement", "step", "mistake"),
    [
        (r"input_1_ptr\[(.+?)\]\)", r"input_1_ptr[(\1) ^ 1])", "multiply_2", "lowest bit"),
        (r"input_1_ptr\[(.+?)\]\)", r"input_0_ptr[\1])", "multiply_2", "reads input_0 in place of"),
        (r"\) \* input_1_ptr", ") / input_1_ptr", "multiply_2", "computes div in place of mul"),
        (r"exp\(", "exp2(", "sigmoid", "computes exp2 in place of exp"),
        (r"\(0\.0+e\+00f - input_0", "(0.0f + input_0", "sigmoid", "leaves out 0 in 0 - input_0"),
        (r"1\.0+e\+00f \+", "2.0f +", "sigmoid", "takes 2 for the constant 1"),
        (r"1\.0+e\+00f \+", "1.7f +", "sigmoid", "takes 1.7 for the constant 1"),
        (r"\) \* input_1", ") * 1.2345f * input_1", "sigmoid", "takes 1.2345 for the constant 1"),
    ],
)
def test_a_mistake_of_the_fused_kernel_alone_is_named(
    pattern: str,
    replacement: str,
    step: str,
    mistake: str,
    gate: Operator,
    session: Session,
    compiler: Compiler,
) -> None:
    failing = planted(gate, in_one(gate, pattern, replacement), session, compiler)
    found, context = look(failing)
    assert found is not None, context.notes
    assert (found.step.name, found.step.count, found.step.found) == (step, 3, "hypothesis")
    assert mistake in found.step.mistake, found.step
    assert found.step.mistake in found.step.sentence
    assert found.step.ratio < 8
    assert any("passing as kernels of their own: sigmoid" in note for note in context.notes)


def test_a_step_whose_own_kernel_fails_is_named_first(
    root: Operator, session: Session, compiler: Compiler
) -> None:
    failing = planted(root, wherever(r"1\.0+e\+00f / sqrt", "sqrt"), session, compiler)
    found, _ = look(failing)
    assert found is not None
    assert (found.step.name, found.step.found) == ("rsqrt", "refined kernel")
    assert (found.step.position, found.step.count) == (4, 5)
    assert found.step.mistake == "computes sqrt in place of rsqrt in rsqrt(add[i, j])"
    assert found.step.ratio > found.step.limit > 0
    assert found.step.operation == "rsqrt[i, j] = rsqrt(add[i, j])"
    assert found.replay is not None


def test_a_fault_that_needs_two_steps_together_is_named_by_the_shortest_wrong_prefix(
    root: Operator, session: Session, compiler: Compiler
) -> None:
    """The mean is wrong only where the sum and the division are one kernel."""

    def change(each: Operator, library: Library) -> Library:
        together = each.name == root.name or "up_to" in each.name
        return edited(library, r"/ 4\.0+e\+01f", "* 0.031415f") if together else library

    found, context = look(planted(root, change, session, compiler))
    assert found is not None, context.notes
    assert (found.step.name, found.step.found) == ("mean.divide", "prefix kernel")
    assert "passes by itself" in found.step.sentence


def test_a_reduction_that_starts_late_is_named(session: Session, compiler: Compiler) -> None:
    operator = operator_of(lambda x, w: x @ w + 1.0, normal(7, 60), normal(60, 36))
    pattern = r"(\w+)\[0\] = 0\.0+e\+00f;"
    failing = planted(operator, in_one(operator, pattern, r"\1[0] = 1.0f;"), session, compiler)
    found, context = look(failing)
    assert found is not None, context.notes
    assert found.step.name == "matmul"
    assert found.step.mistake.startswith("starts its sum from 1")
    assert "in the elements that are wrong" in found.step.sentence


def test_a_lost_level_of_a_reduction_tree_is_named(
    root: Operator, session: Session, compiler: Compiler
) -> None:
    tree = r"(red_buf0_ptr\)\[\(convert_int\(get_local_id\(0\)\)\)\] = \(.+?) \+ [^;]+ \+ 8\)\]\);"
    found, context = look(planted(root, in_one(root, tree, r"\1);"), session, compiler))
    assert found is not None, context.notes
    assert found.step.name == "mean.operands_0_red"
    assert found.step.mistake.startswith("leaves out the second half of every 16 terms of its sum")


def test_an_operator_of_one_step_is_its_own_step(session: Session, compiler: Compiler) -> None:
    operator = operator_of(lambda a, b: a - b, normal(4, 30), normal(4, 30))
    change = in_one(operator, r"input_0_ptr(\[.+?\]) - input_1_ptr(\[.+?\])",
                    r"input_1_ptr\1 - input_0_ptr\2")  # fmt: skip
    found, _ = look(planted(operator, change, session, compiler))
    assert found is not None
    assert found.step.found == "only step"
    assert found.step.mistake == "reads input_0 and input_1 in each other's place"


def test_what_cannot_be_named_is_narrowed_down_by_what_passes(
    gate: Operator, session: Session, compiler: Compiler
) -> None:
    change = in_one(gate, r"input_1_ptr\[(.+?)\]\)", r"sin(3.0f * input_1_ptr[\1]))")
    found, context = look(planted(gate, change, session, compiler))
    assert found is None
    assert any("standard mistakes" in note for note in context.notes)
    assert any("arises only in the kernel of all steps" in note for note in context.notes)


def test_steps_that_do_not_compile_are_noted_and_guesses_remain(
    gate: Operator, session: Session, compiler: Compiler
) -> None:
    failing = planted(gate, in_one(gate, r"exp\(", "exp2("), session, compiler)

    def refuse(operator: Operator, options: Mapping[str, str]) -> Library:
        raise CompileError(f"no code for {operator.name}")

    failing.compile = refuse
    found, context = look(failing)
    assert found is not None
    assert found.step.found == "hypothesis"
    assert any("sigmoid could not be compiled" in note for note in context.notes)


@pytest.mark.parametrize("seconds", [-1.0])
def test_without_time_nothing_is_begun_and_the_notes_say_so(
    seconds: float, gate: Operator, session: Session, compiler: Compiler
) -> None:
    failing = planted(gate, in_one(gate, r"exp\(", "exp2("), session, compiler)
    failing.compile = _never
    found, context = look(failing, seconds)
    assert found is None
    assert any("time was up" in note for note in context.notes)


def _never(operator: Operator, options: Mapping[str, str]) -> Library:
    raise AssertionError(f"{operator.name} should not have been compiled")


def test_an_operator_without_its_function_has_no_steps(
    gate: Operator, session: Session, compiler: Compiler
) -> None:
    failing = planted(gate, in_one(gate, r"exp\(", "exp2("), session, compiler)
    stripped = replace(failing.failure, operator=replace(gate, function="", body=None))
    found, context = look(replace(failing, failure=stripped))
    assert found is None
    assert context.notes == [
        "the operator's function is not at hand, so there are no steps to look into"
    ]


def test_where_the_outputs_are_right_no_step_is_looked_for(
    gate: Operator, session: Session, compiler: Compiler
) -> None:
    failing = planted(gate, in_one(gate, r"exp\(", "exp2("), session, compiler)
    failing.compile = _never
    unread = replace(failing.failure, result=replace(failing.failure.result, actual=()))
    found, context = look(replace(failing, failure=unread))
    assert found is None
    assert context.notes == ["no output is wrong by its numbers, so no step is looked for"]

"""An operator whose fused kernel breaks a limit runs as the steps of its body."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from tvm import relax, tirx

from tapml.compiler.compiler import Compiler
from tapml.compiler.preflight import check
from tapml.importing.importer import import_relax
from tapml.plan.graph_plan import Operator
from tapml_targets.driver import Driver
from tapml_targets.library import BufferArgument, launches
from tapml_targets.limits import Limits
from tapml_targets.placement import placement_of
from tapml_targets.target import Target
from tests.compiler.operators import run

FOUR_BUFFERS = Target("webgpu", limits=Limits(max_storage_buffers=4, max_binding_bytes=1 << 20))
INPUTS = 5


@pytest.fixture(scope="module")
def fused() -> Operator:
    """``((a * b + c) * d + e)`` over ``(n, 12)``: five inputs and an output in one kernel."""
    kind = relax.TensorType([tirx.Var("n", "int64"), 12], "float32")
    given = [relax.Var(name, kind) for name in "abcde"]
    builder = relax.BlockBuilder()
    with builder.function("main", given):
        a, b, c, d, e = given
        with builder.dataflow():
            first = builder.emit(relax.op.add(builder.emit(relax.op.multiply(a, b)), c))
            last = relax.op.add(builder.emit(relax.op.multiply(first, d)), e)
            result = builder.emit_output(last)
        builder.emit_func_output(result)
    (operator,) = import_relax(builder.get(), "main").plan.operators.values()
    assert operator.body is not None
    return operator


@pytest.fixture(scope="module")
def refining(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compiler]:
    with Compiler(tmp_path_factory.mktemp("libraries"), workers=2) as opened:
        yield opened


def test_each_step_becomes_a_kernel_with_equal_results(
    adapter: Driver, refining: Compiler, fused: Operator
) -> None:
    library = refining.compile(fused, FOUR_BUFFERS)
    (program,) = library.operators.values()
    assert program.name == fused.name
    assert program.parameters == fused.parameters
    found = list(launches(program.statements))
    assert len(found) == 4
    buffers = [[a for a in each.arguments if isinstance(a, BufferArgument)] for each in found]
    assert max(map(len, buffers)) == 3
    assert check(library, FOUR_BUFFERS.limits) == ()
    rng = np.random.default_rng(1)
    given = [rng.standard_normal((7, 12), np.float32) for _ in range(INPUTS)]
    *_, result = run(adapter, library, fused.name, [*given, np.zeros((7, 12), np.float32)])
    a, b, c, d, e = given
    np.testing.assert_allclose(result, (a * b + c) * d + e, rtol=1e-5, atol=1e-6)


def test_the_library_says_why_in_numbers(refining: Compiler, fused: Operator) -> None:
    library = refining.compile(fused, FOUR_BUFFERS)
    assert placement_of(library, fused.name) == (
        "refined into 4 kernels: max_storage_buffers needs 6, the device has 4"
    )


def test_within_the_limits_the_fused_kernel_stays(refining: Compiler, fused: Operator) -> None:
    """Also after the refined one was made: both are in the cache."""
    refining.compile(fused, FOUR_BUFFERS)
    library = refining.compile(fused, Target("webgpu", limits=Limits(max_storage_buffers=6)))
    assert len(library.kernels) == 1
    assert placement_of(library, fused.name) == ""


def test_if_the_steps_do_not_fit_either_the_fused_kernel_is_named(
    refining: Compiler, fused: Operator
) -> None:
    limits = replace(FOUR_BUFFERS.limits, max_storage_buffers=2)
    library = refining.compile(fused, Target("webgpu", limits=limits))
    (problem,) = check(library, limits)
    assert (problem.limit, problem.need, problem.has) == ("max_storage_buffers", "6", "2")


def test_a_refined_operator_comes_from_the_cache(
    refining: Compiler, fused: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = refining.compile(fused, FOUR_BUFFERS)
    with monkeypatch.context() as patched:
        patched.setattr(refining, "_pool", None)
        assert refining.compile(fused, FOUR_BUFFERS) == made

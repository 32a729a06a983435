"""What `tapml kernel new` writes: the compiled kernel as it runs, or a skeleton that says so."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from tapml.kernels.compiled import compiled_library
from tapml.kernels.manifest_text import manifest_of_library
from tapml.kernels.session_facts import read_facts
from tapml.kernels.starting_point import write_starting_point
from tapml.kernels.written import WrittenKernels
from tapml.suite.suite import Suite
from tapml_targets.call_plan import TensorShape, plan_call
from tapml_targets.errors import CompileError, InputError
from tapml_targets.library import (
    Bind,
    CodeModule,
    Condition,
    Kernel,
    Launch,
    Library,
    Loop,
    OperatorProgram,
    ScalarArgument,
)
from tapml_targets.target import Target
from tests.kernels.operators import SCALE, TARGET, put_kernel
from tests.kernels.sessions import OPERATOR, KernelSession
from tests.offload.sessions import FinishedSession


def test_every_compiled_kernel_is_launched_as_before(
    finished: FinishedSession,
    tiny_target: Target,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TAPML_CACHE_DIR", str(finished.cache))
    kernels = WrittenKernels([tmp_path], tiny_target)
    with Suite.open(read_facts(finished.folder).suite) as suite:
        assert len(suite.operators) > 20
        for operator in suite.operators.values():
            tests = list(suite.tests_of(operator.name))
            compiled = compiled_library(operator, tiny_target)
            give = partial(compiled_library, operator, tiny_target)
            written = write_starting_point(tmp_path, operator, tests, tiny_target, give)
            assert written.compiled
            kernel = kernels.find(operator)
            assert kernel is not None
            shapes = [TensorShape(t.shape, t.dtype) for t in (*tests[0].inputs, *tests[0].outputs)]
            assert plan_call(kernel.library, operator.name, shapes, tests[0].symbols) == plan_call(
                compiled, operator.name, shapes, tests[0].symbols
            )


def test_loops_conditions_and_named_values_are_written(tmp_path: Path) -> None:
    def launch(value: str) -> Launch:
        return Launch("k", (ScalarArgument(value, "int64"),), grid=(value, 1, 1))

    body = (Bind("twice.v", ("mul", "i", 2)), launch("twice.v"), launch("rows"))
    program = OperatorProgram(
        "scale",
        SCALE.parameters,
        (
            Bind("rows", ("add", "S", 1)),
            Loop("i", 1, "rows", body),
            Condition(("gt", "S", 4), (launch("S"),), (launch("rows"),)),
        ),
    )
    library = Library(
        "opencl", (CodeModule("opencl-c", b""),), {"k": Kernel("k", "k", 0)}, {"scale": program}
    )
    text = manifest_of_library(SCALE, "opencl", library, ["scale.cl"])
    text = text.replace("arguments = [\n", 'arguments = [\n  "output_0",\n')
    source = "__kernel void k(__global float* output_0, long n) {}\n"
    put_kernel(tmp_path, text, source)
    kernel = WrittenKernels([tmp_path], TARGET).find(SCALE)
    assert kernel is not None
    for rows, grids in ((2, [2, 3, 4, 3, 6, 3, 3]), (5, None)):
        shapes = [TensorShape(s, "float32") for s in ((1, rows, 128), (128,), (1, rows, 128))]
        plan = plan_call(kernel.library, "scale", shapes, {})
        expected = plan_call(library, "scale", shapes, {})
        found = [launch.grid[0] for launch in plan.launches]
        assert found == [launch.grid[0] for launch in expected.launches]
        assert grids is None or found == grids


def test_what_the_compiler_refuses_begins_with_a_skeleton(
    kernel_session: KernelSession, tiny_target: Target, tmp_path: Path
) -> None:
    def refused() -> Library:
        raise CompileError("no schedule fits this scan")

    with Suite.open(kernel_session.folder / "suite") as suite:
        operator = suite.operators[OPERATOR]
        tests = list(suite.tests_of(OPERATOR))
        written = write_starting_point(tmp_path, operator, tests, tiny_target, refused)
    assert not written.compiled
    assert "no schedule fits this scan" in written.why
    source = (written.folder / f"{OPERATOR}.cl").read_text()
    assert "// Write output_0[element] here." in source
    assert f"//   {len(tests):4d} of decode: input_0 [1, 1, " in source
    assert WrittenKernels([tmp_path], tiny_target).find(operator) is not None
    assert (written.folder / "function.txt").read_text() == operator.script


def test_a_kernel_that_is_there_is_not_written_over(kernel_session: KernelSession) -> None:
    before = kernel_session.source.read_bytes()
    ended = kernel_session.kernel("new", OPERATOR)
    assert ended.exit_code == 2
    assert "is there already: edit it" in ended.errors
    assert kernel_session.source.read_bytes() == before


def test_it_can_be_written_into_a_shared_folder(
    kernel_session: KernelSession, tmp_path: Path
) -> None:
    ended = kernel_session.kernel("new", OPERATOR, "--shared", tmp_path)
    assert ended.exit_code == 0
    assert f"--kernels {tmp_path}" in ended.output
    assert (tmp_path / OPERATOR / "opencl" / "kernel.toml").is_file()


def test_a_mistyped_operator_is_named_with_the_near_one(kernel_session: KernelSession) -> None:
    for given in ("fused_rsm_norm_2", "rms"):
        ended = kernel_session.kernel("new", given)
        assert ended.exit_code == 2
        assert re.search(rf"did you mean [^?]*'{OPERATOR}'", ended.errors)


def test_what_is_no_session_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a session"):
        read_facts(tmp_path)

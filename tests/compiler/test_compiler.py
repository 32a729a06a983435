"""Operators compile side by side in children; a failure is a value that names the operator."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tapml.compiler import compiler as compiler_module
from tapml.compiler.compiler import Compiler, operator_source
from tapml.plan.graph_plan import Operator
from tapml_targets import opencl
from tapml_targets.driver import Driver
from tapml_targets.errors import CompileError, InputError, SetupError
from tapml_targets.library import Library
from tapml_targets.target import Target
from tests.compiler.operators import OPENCL, matmul_transposed, renamed, run, scale, softmax


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("libraries")


@pytest.fixture(scope="module")
def compiler(folder: Path) -> Iterator[Compiler]:
    with Compiler(folder, workers=2) as opened:
        yield opened


def test_a_compiled_operator_runs_on_the_device(compiler: Compiler, driver: Driver) -> None:
    library = compiler.compile(scale(factor=3.0), OPENCL)
    given = np.ones((2, 8), np.float32)
    _, result = run(driver, library, "scale", [given, np.zeros_like(given)])
    np.testing.assert_array_equal(result, 3 * given)


def test_results_keep_the_requested_order_and_progress_is_reported(compiler: Compiler) -> None:
    operators = [softmax(), matmul_transposed(), scale("double"), scale("triple", factor=3.0)]
    told: list[tuple[int, int, str, bool]] = []

    def progress(done: int, total: int, of: Operator, outcome: Library | CompileError) -> None:
        told.append((done, total, of.name, isinstance(outcome, Library)))

    results = list(compiler.compile_all(operators, OPENCL, progress=progress))
    assert [of.name for of, _ in results] == ["softmax", "matmul", "double", "triple"]
    assert told == [(i, 4, of.name, True) for i, of in enumerate(operators, 1)]


def test_a_cached_operator_needs_no_child_process(folder: Path, compiler: Compiler) -> None:
    library = compiler.compile(scale(), OPENCL)
    with Compiler(folder, deadline_seconds=1e-9) as other:
        assert other.compile(scale(), OPENCL) == library
        with pytest.raises(CompileError, match="did not finish within"):
            other.compile(renamed(scale(), "new"), OPENCL)


def test_both_platforms_compile_the_same_operator(compiler: Compiler) -> None:
    for platform, dialect in (("opencl", "opencl-c"), ("cpu", "elf-shared-object")):
        library = compiler.compile(scale(), Target(platform))
        assert (library.target, library.modules[0].dialect) == (platform, dialect)


def test_each_kind_of_platform_gets_its_own_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    of = replace(scale(factor=2.0), variants={"gpu": "for kernels"})
    assert operator_source(of, OPENCL).function == of.function
    monkeypatch.setattr(opencl, "FUNCTION_KIND", "gpu")
    assert operator_source(of, OPENCL).function == "for kernels"


def test_a_refusal_names_the_operator_and_the_others_still_compile(compiler: Compiler) -> None:
    broken = replace(scale("broken"), parameters=scale().parameters[:1])
    outcomes = dict(_by_name(compiler, [broken, scale("sound")]))
    assert isinstance(outcomes["sound"], Library)
    failure = outcomes["broken"]
    assert isinstance(failure, CompileError)
    assert str(failure).startswith("operator 'broken' does not compile for opencl: ")


def test_a_crash_of_the_compiler_is_a_verdict_with_its_signal(compiler: Compiler) -> None:
    outcomes = dict(_by_name(compiler, [_bottomless(scale("deep")), scale("shallow")]))
    assert isinstance(outcomes["shallow"], Library)
    failure = outcomes["deep"]
    assert isinstance(failure, CompileError)
    assert "killed by SIGSEGV while compiling operator 'deep' for opencl" in str(failure)
    assert "lowering.py" in str(failure)


def test_a_hang_is_a_verdict_with_its_deadline(tmp_path: Path) -> None:
    expected = pytest.raises(CompileError, match=r"not finish within 0\.001 s while .* 'softmax'")
    with Compiler(tmp_path, deadline_seconds=0.001) as compiler, expected:
        compiler.compile(softmax(), OPENCL)


def test_a_failure_is_not_kept(folder: Path, compiler: Compiler) -> None:
    with Compiler(folder, deadline_seconds=1e-9) as hasty, pytest.raises(CompileError):
        hasty.compile(renamed(softmax(), "later"), OPENCL)
    assert isinstance(compiler.compile(renamed(softmax(), "later"), OPENCL), Library)


def test_an_unknown_platform_is_refused_with_the_known_ones(compiler: Compiler) -> None:
    with pytest.raises(InputError, match=r"unknown target 'abacus'; known targets: cpu, .*opencl"):
        compiler.compile(scale(), Target("abacus"))


def test_a_machine_without_tvm_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_module, "find_spec", lambda _: None)
    with pytest.raises(SetupError, match=r'pip install -e "\.\[host\]"'):
        Compiler()


def _by_name(
    compiler: Compiler, operators: list[Operator]
) -> Iterator[tuple[str, Library | CompileError]]:
    for of, outcome in compiler.compile_all(operators, OPENCL):
        yield of.name, outcome


def _bottomless(of: Operator, depth: int = 20_000) -> Operator:
    """The operator with a product so long that TVM's recursion overflows the stack."""
    document = json.loads(of.function)
    nodes = document["nodes"]
    product = max(i for i, node in enumerate(nodes) if node["type"] == "prim.Mul")
    data = nodes[product]["data"]
    last = product
    for _ in range(depth):
        nodes.append({"type": "prim.Mul", "data": {**data, "a": last}})
        last = len(nodes) - 1
    (store,) = (node for node in nodes if node["type"] == "tirx.BufferStore")
    store["data"]["value"] = last
    return replace(of, function=json.dumps(document))

"""Exact probes beside carved tests: where they are made, how they are counted and judged."""

from __future__ import annotations

import numpy as np
import pytest

from tapml.carving.record import carve
from tapml.compiler.compiler import Compiler
from tapml.compiler.reference import compile_reference
from tapml.compiler.twin import compile_twins
from tapml.execute.executor import Executor
from tapml.importing.importer import import_model
from tapml.models import Prompt
from tapml.models.huggingface import load_model
from tapml.oracles.oracle import Oracle
from tapml.oracles.probing import Probing, is_probe
from tapml.replaying.suite_replay import SuiteReplayer
from tapml.suite.selection import Filters
from tapml.suite.suite import Suite
from tapml.verdicts.policy import Policy
from tapml_rpc.local import open_local
from tests.conftest import RequireDevice
from tests.models.folders import make_folder
from tests.oracles.carved_zoo import carved_zoo

pytestmark = pytest.mark.run_first

PRODUCTS = Filters(operators=("*matmul*",))


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Suite:
    """A suite of a tiny model."""
    folder = tmp_path_factory.mktemp("half")
    model = load_model(make_folder(folder / "model", "float16", num_hidden_layers=1))
    imported = import_model(model)
    executor = Executor(imported.plan, imported.weights, compile_reference(imported.plan))
    return carve(model, executor, [Prompt((1, 2, 3, 4), None)], folder / "suite", max_new_tokens=2)


def test_half_precision_products_get_probes_that_pass(
    half: Suite, require_device: RequireDevice
) -> None:
    device = require_device("opencl", dtype="float16")[0]
    policy = Policy()
    with (
        open_local(device) as session,
        Compiler() as compiler,
        Oracle(half.operators, compile_twins, policy) as oracle,
    ):
        found = SuiteReplayer(half, session, compiler, oracle, policy).replay(PRODUCTS)
    assert found.status == "pass"
    assert found.tests == half.count(PRODUCTS)
    probed = {
        verdict.operator
        for verdict in found.operators
        if any(is_probe(result.test) for result in verdict.results)
    }
    assert probed
    assert probed == half.tested_operators(PRODUCTS)
    assert found.probes >= len(probed)


def test_a_probe_is_told_from_a_carved_test_and_expects_exact_values(half: Suite) -> None:
    name = next(name for name in half.operators if "matmul" in name)
    operator = half.operators[name]
    with Oracle(half.operators, compile_twins, Policy()) as oracle:
        probing = Probing(oracle, lambda: compile_reference(half.operators.values()))
        tests = list(probing.tests(operator, half.tests_of(name)))
        carved_tests = [test for test in tests if not is_probe(test.id)]
        assert [test.id for test in carved_tests] == [test.id for test in half.tests_of(name)]
        for test in tests:
            expectation = probing.expect(test)
            exact = not any(np.any(output.sensitivity) for output in expectation.outputs)
            assert exact == is_probe(test.id)


def test_single_precision_gets_none() -> None:
    zoo = carved_zoo()
    name = next(name for name in zoo.stored if "matmul" in name)
    product = zoo.stored[name]
    with Oracle({name: product}, compile_twins, Policy()) as oracle:
        probing = Probing(oracle, lambda: compile_reference([product]))
        tests = list(probing.tests(product, zoo.tests[name]))
    assert tests
    assert not any(is_probe(test.id) for test in tests)

"""Three oracles on the demo model: they agree on it, and a planted fault is named where it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tapml.compiler.compiler import Compiler
from tapml.compiler.reference import compile_reference
from tapml.compiler.twin import compile_twins
from tapml.importing.importer import import_module
from tapml.oracles.oracle import Oracle
from tapml.oracles.torch_oracle import AGREEMENT, check_independently
from tapml.plan.graph_plan import Operator
from tapml.plan.torch_subgraph import TorchForm
from tapml.replaying.replayer import replay
from tapml.verdicts.expectation import Expectation
from tapml.verdicts.judge import judge
from tapml.verdicts.policy import Policy
from tapml.verdicts.verdict import Verdict
from tapml_rpc.local import open_local
from tapml_targets.target import Target
from tests.conftest import RequireDevice
from tests.oracles.carved_zoo import CarvedZoo, carved_zoo
from tests.oracles.cases import MemoryCase, make_case

POLICY = Policy()
SILU = "fused_silu_multiply"
NORM = "fused_rms_norm"


@pytest.fixture(scope="module")
def zoo() -> CarvedZoo:
    return carved_zoo()


@pytest.fixture(scope="module")
def oracle(zoo: CarvedZoo) -> Iterator[Oracle]:
    with Oracle(zoo.plan.operators, compile_twins, POLICY) as made:
        yield made


def other_function(operator: Operator, kind: str, old: object, new: object) -> Operator:
    """`operator` with one node of its function changed; what it comes from stays."""
    document = json.loads(operator.function)
    changed = 0
    for node in document["nodes"]:
        data = node.get("data")
        if node["type"] != kind:
            continue
        if data == old:
            node["data"], changed = new, changed + 1
        elif isinstance(data, dict) and data.get("value") == old:
            data["value"], changed = new, changed + 1
    assert changed == 1
    return replace(operator, function=json.dumps(document), hash=f"{operator.hash[:-4]}0bad")


def with_tanh(zoo: CarvedZoo) -> Operator:
    """The gate with tanh in the place of its sigmoid."""
    return other_function(zoo.plan.operators[SILU], "ir.Op", "tirx.sigmoid", "tirx.tanh")


def rerun(case: MemoryCase, operator: Operator) -> MemoryCase:
    """The same inputs with what `operator` makes of them as the reference's outputs."""
    outputs = tuple(np.zeros_like(array) for array in case.results)
    reference = compile_reference([operator])
    reference[operator.name](*case.arrays, *outputs, symbols=case.symbols)
    return replace(case, results=outputs)


def verdict_on(
    operator: Operator, twin: Operator, case: MemoryCase, target: tuple[np.ndarray, ...]
) -> Verdict:
    """Judge `target` as replay does: the appeal is what decides."""
    with Oracle({operator.name: operator}, lambda _: compile_twins([twin]), POLICY) as oracle:
        expectation = oracle.expect(case)
        verdict = judge(operator, expectation, case.results, target, POLICY)
        if verdict.status != "pass":
            verdict = judge(operator, oracle.appeal(case), case.results, target, POLICY)
    return verdict


def test_every_operator_has_a_torch_subgraph_on_all_its_call_sites(zoo: CarvedZoo) -> None:
    assert len(zoo.plan.operators) == 41
    for operator in zoo.plan.operators.values():
        assert [form.reason for form in operator.torch_forms] == [""], operator.name
        (form,) = operator.torch_forms
        assert set(form.sites) == {call.site for call in zoo.plan.sites_of(operator.name)}


def test_a_suite_holds_the_subgraphs_so_that_a_replay_needs_no_model(zoo: CarvedZoo) -> None:
    assert dict(zoo.stored) == zoo.plan.operators


def test_twin_and_torch_agree_on_every_operator(zoo: CarvedZoo, oracle: Oracle) -> None:
    assert zoo.tests.keys() == zoo.plan.operators.keys()
    for name, cases in zoo.tests.items():
        for case in cases:
            check = oracle.appeal(case).independent
            assert check is not None and check.agrees, name
            # A millionth of what is called honest: both are float64.
            assert check.twin_ratio < 1e-6 * AGREEMENT, name
            assert check.reference_ratio < 32


@pytest.mark.parametrize("fault", ["tanh for sigmoid", "epsilon"])
def test_an_imported_function_that_is_not_the_models_is_the_importers(
    zoo: CarvedZoo, fault: str
) -> None:
    if fault == "epsilon":
        epsilon = float(np.float32(1e-5))
        wrong = other_function(zoo.plan.operators[NORM], "ir.FloatImm", epsilon, 2 * epsilon)
    else:
        wrong = with_tanh(zoo)
    case = rerun(zoo.tests[wrong.name][0], wrong)
    verdict = verdict_on(wrong, wrong, case, case.results)
    assert (verdict.status, verdict.suspect) == ("degraded", "importer")
    assert "the importer is suspect: torch's own graph in float64 differs" in verdict.reason
    ratio = verdict.outputs[0].independent_ratio
    assert ratio is not None and ratio > 10 * AGREEMENT


def test_a_target_that_fails_what_it_was_given_is_accused_beside_the_importer(
    zoo: CarvedZoo,
) -> None:
    wrong = with_tanh(zoo)
    case = rerun(zoo.tests[SILU][0], wrong)
    shifted = tuple(np.roll(array, 1, -1) for array in case.results)
    verdict = verdict_on(wrong, wrong, case, shifted)
    assert (verdict.status, verdict.suspect) == ("fail", "target")
    assert "the importer is suspect" in verdict.reason


def test_a_reference_that_computes_something_else_is_the_references_fault(zoo: CarvedZoo) -> None:
    right = zoo.plan.operators[SILU]
    case = zoo.tests[SILU][0]
    verdict = verdict_on(right, right, rerun(case, with_tanh(zoo)), case.results)
    assert (verdict.status, verdict.suspect) == ("pass", "reference")
    assert "the reference is suspect" in verdict.reason


def test_a_wrong_twin_is_named_and_torch_judges_the_target(zoo: CarvedZoo) -> None:
    right, wrong = zoo.plan.operators[SILU], with_tanh(zoo)
    case = zoo.tests[SILU][0]
    verdict = verdict_on(right, wrong, case, case.results)
    assert (verdict.status, verdict.suspect) == ("pass", "twin")
    assert "the float64 twin is suspect" in verdict.reason
    shifted = tuple(np.roll(array, 1, -1) for array in case.results)
    verdict = verdict_on(right, wrong, case, shifted)
    assert (verdict.status, verdict.suspect) == ("fail", "target")


def test_a_wrong_target_alone_is_accused(zoo: CarvedZoo) -> None:
    right = zoo.plan.operators[SILU]
    case = zoo.tests[SILU][0]
    verdict = verdict_on(right, right, case, rerun(case, with_tanh(zoo)).results)
    assert (verdict.status, verdict.suspect) == ("fail", "target")
    assert "importer" not in verdict.reason and "twin" not in verdict.reason


def test_target_and_reference_that_err_alike_leave_two_oracles_against_them(
    zoo: CarvedZoo,
) -> None:
    right = zoo.plan.operators[SILU]
    case = rerun(zoo.tests[SILU][0], with_tanh(zoo))
    verdict = verdict_on(right, right, case, case.results)
    assert (verdict.status, verdict.suspect) == ("degraded", "reference")
    assert "torch's own graph agrees with the float64 twin" in verdict.reason


def test_a_replay_on_a_device_names_the_importer(
    zoo: CarvedZoo, require_device: RequireDevice
) -> None:
    device = require_device("opencl")[0]
    wrong = with_tanh(zoo)
    case = rerun(zoo.tests[SILU][0], wrong)
    with (
        open_local(device) as session,
        Compiler() as compiler,
        Oracle({SILU: wrong}, compile_twins, POLICY) as oracle,
    ):
        library = compiler.compile(wrong, Target("opencl", limits=session.device.limits))
        result = replay(wrong, case, library, session, oracle, POLICY)
    assert (result.verdict.status, result.verdict.suspect) == ("degraded", "importer")


def test_only_the_first_test_of_a_shape_is_checked_until_one_disagrees(zoo: CarvedZoo) -> None:
    first, last = zoo.tests["matmul_transposed_5"]
    assert first.key != last.key and first.results[0].shape == last.results[0].shape
    right = zoo.plan.operators[first.operator]
    with Oracle({right.name: right}, compile_twins, POLICY) as oracle:
        assert oracle.expect(first).independent is not None
        assert oracle.expect(last).independent is None
        assert oracle.appeal(last).independent is not None
    wrong = with_tanh(zoo)
    cases = [rerun(case, wrong) for case in zoo.tests[SILU]]
    with Oracle({SILU: wrong}, compile_twins, POLICY) as oracle:
        for case in cases:
            check = oracle.expect(case).independent
            assert check is not None and not check.agrees


def test_what_the_cache_gives_back_holds_the_check(zoo: CarvedZoo, tmp_path: Any) -> None:
    wrong = with_tanh(zoo)
    case = rerun(zoo.tests[SILU][0], wrong)
    cache = tmp_path / "oracle.sqlite"
    with Oracle({SILU: wrong}, compile_twins, POLICY, cache=cache) as oracle:
        fresh = oracle.expect(case).independent
    with Oracle({SILU: wrong}, lambda _: {}, POLICY, cache=cache) as oracle:
        again = oracle.expect(case).independent
    assert fresh is not None and again is not None
    (made,), (read) = fresh.outputs, again.outputs[0]
    assert (made.twin_ratio, made.reference_ratio) == (read.twin_ratio, read.reference_ratio)
    assert made.values is not None and read.values is not None
    np.testing.assert_array_equal(made.values, read.values)


def test_without_torch_the_check_is_not_available_and_is_made_later(
    zoo: CarvedZoo, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = zoo.tests[SILU][0]
    operators = {SILU: zoo.plan.operators[SILU]}
    cache = tmp_path / "oracle.sqlite"
    with monkeypatch.context() as patched:
        patched.setattr("tapml.oracles.torch_oracle.torch_is_installed", lambda: False)
        with Oracle(operators, compile_twins, POLICY, cache=cache) as oracle:
            check = oracle.expect(case).independent
            assert check is not None and not check.available and check.torch_missing
            verdict = judge(
                operators[SILU], oracle.expect(case), case.results, case.results, POLICY
            )
            assert (verdict.status, verdict.suspect) == ("pass", "")
    with Oracle(operators, lambda _: {}, POLICY, cache=cache) as oracle:
        check = oracle.expect(case).independent
    assert check is not None and check.agrees


def expectation_of(operator: Operator, case: MemoryCase) -> Expectation:
    with Oracle({operator.name: operator}, compile_twins, POLICY) as oracle:
        return oracle.appeal(case)


class Scaled(torch.nn.Module):
    """Multiplies by a number."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.number = number

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        return numbers * self.number


def test_an_operator_that_computes_something_else_than_torch_does_is_the_importers() -> None:
    """A factor that was cut to a whole number, in the operator and in its twin."""
    whole, fraction = (
        next(iter(import_module(Scaled(each), (torch.arange(12.0),)).plan.operators.values()))
        for each in (2.0, 2.25)
    )
    operator = replace(whole, torch_forms=fraction.torch_forms)
    inputs = [np.arange(12, dtype=np.float32)]
    case = make_case(operator, compile_reference([operator]), inputs)
    expectation = expectation_of(operator, case)
    verdict = judge(operator, expectation, case.results, case.results, POLICY)
    assert (verdict.status, verdict.suspect) == ("degraded", "importer")


@pytest.mark.parametrize("approximate", ["tanh", "none"])
def test_the_far_tail_of_a_gelu_is_all_rounding_and_nobodys_fault(approximate: str) -> None:
    """1 + tanh(-20) has lost its digits in float32, and most of them in float64."""
    gelu = torch.nn.GELU(approximate=approximate)
    imported = import_module(gelu, (torch.zeros(1, 400),))
    (operator,) = imported.plan.operators.values()
    inputs = [np.linspace(-12, 12, 400, dtype=np.float32)[None]]
    case = make_case(operator, compile_reference([operator]), inputs)
    expectation = expectation_of(operator, case)
    assert expectation.independent is not None and expectation.independent.agrees
    torchs = gelu(torch.from_numpy(inputs[0])).numpy()
    verdict = judge(operator, expectation, case.results, [torchs], POLICY)
    assert (verdict.status, verdict.suspect) == ("pass", ""), verdict.reason
    shifted = judge(operator, expectation, case.results, [np.roll(torchs, 1, -1)], POLICY)
    assert (shifted.status, shifted.suspect) == ("fail", "target")


def test_a_call_site_that_no_form_names_is_not_checked(zoo: CarvedZoo) -> None:
    operator = zoo.plan.operators[SILU]
    (form,) = operator.torch_forms
    case = zoo.tests[SILU][0]
    expectation = expectation_of(operator, case)
    two = replace(operator, torch_forms=(form, TorchForm(("elsewhere",), None, "no reason")))

    def reason(of: Operator, site: str) -> str:
        return check_independently(of, site, {}, case.arrays, case.results, expectation).reason

    assert reason(two, form.sites[0]) == ""
    assert reason(two, "elsewhere") == "no reason"
    assert "of which one 'nowhere' is" in reason(two, "nowhere")
    assert reason(operator, "nowhere") == ""
    none = replace(operator, torch_forms=())
    assert reason(none, "nowhere") == "the plan was not made from a torch program"

"""The text of --explain: its own numbers give its verdict again."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from tvm import relax

from tapml.compiler.reference import compile_reference
from tapml.compiler.reference_module import ReferenceModule
from tapml.compiler.twin import compile_twins
from tapml.oracles.explain import explain
from tapml.oracles.oracle import Oracle
from tapml.plan.graph_plan import Operator
from tapml.verdicts.expectation import Expectation, ExpectedOutput
from tapml.verdicts.judge import judge
from tapml.verdicts.limits import DEFAULT_LIMITS, RatioLimits
from tapml.verdicts.policy import Override, Policy
from tapml.verdicts.verdict import Cause, Finding
from tapml_targets.errors import InputError
from tests.oracles.cases import MemoryCase, make_case
from tests.oracles.operators import make_operator

op = relax.op
POLICY = Policy()


@pytest.fixture(scope="module")
def operators() -> dict[str, Operator]:
    made = [
        make_operator("product", [((6, 900), "float32"), ((900, 50), "float32")], op.matmul),
        make_operator(
            "wide",
            [((6, 90), "float16"), ((90, 50), "float16")],
            lambda a, b: op.astype(op.matmul(a, b, out_dtype="float32"), "float16"),
        ),
        make_operator("permuted", [((6, 90), "float32")], op.permute_dims),
        make_operator(
            "positive",
            [((6, 90), "float32")],
            lambda x: op.greater(x, relax.const(0.5, "float32")),
            ("predicate",),
        ),
    ]
    return {operator.name: operator for operator in made}


@pytest.fixture(scope="module")
def reference(operators: dict[str, Operator]) -> ReferenceModule:
    return compile_reference(operators.values())


@pytest.fixture(scope="module")
def oracle(operators: dict[str, Operator]) -> Iterator[Oracle]:
    with Oracle(operators, compile_twins, POLICY) as made:
        yield made


def case_of(operator: Operator, reference: ReferenceModule) -> MemoryCase:
    generator = np.random.default_rng(0)
    inputs = [
        generator.standard_normal([int(str(n)) for n in p.shape]).astype(p.dtype)
        for p in operator.read
    ]
    return make_case(operator, reference, inputs)


def explained(
    operator: Operator,
    case: MemoryCase,
    oracle: Oracle,
    actual: np.ndarray,
    policy: Policy = POLICY,
) -> str:
    expectation = oracle.appeal(case)
    verdict = judge(operator, expectation, case.results, [actual], policy)
    traces = {
        numbers.name: oracle.trace(case, expectation, position, numbers.index)
        for position, numbers in enumerate(verdict.outputs)
    }
    return explain(verdict, expectation, policy, operator, reference=case.results, traces=traces)


def number(text: str, label: str) -> float:
    """The number behind a label at the start of a line."""
    found = re.search(rf"^ *{re.escape(label)} +(\S+)", text, re.MULTILINE)
    assert found, (label, text)
    return float(found[1])


@pytest.mark.parametrize("name", ["product", "wide"])
@pytest.mark.parametrize(("factor", "status"), [(0.5, "pass"), (2.0, "degraded"), (9.0, "fail")])
def test_its_numbers_give_its_verdict_again(
    name: str,
    factor: float,
    status: str,
    operators: dict[str, Operator],
    reference: ReferenceModule,
    oracle: Oracle,
) -> None:
    operator = operators[name]
    case = case_of(operator, reference)
    want = oracle.appeal(case).outputs[0]
    limits = POLICY.choose(
        name, want.dtype, oracle.appeal(case).terms, operator_class=want.operator_class
    ).limits
    actual = case.results[0].copy()
    error = factor * limits.passing * want.scale[3, 7]
    actual[3, 7] = actual.dtype.type(want.values[3, 7] + error)
    text = explained(operator, case, oracle, actual)

    target, twin = number(text, "on the target"), number(text, "float64 twin")
    assert number(text, "error") == abs(target - twin)
    perturbed = [float(m[1]) for m in re.finditer(r"perturbation \d+ +(\S+)", text)]
    assert len(perturbed) == POLICY.appeal_repeats
    squares = [(value - twin) ** 2 for value in perturbed]
    rms = number(text, "root mean square")
    assert math.isclose(math.sqrt(sum(squares) / len(squares)), rms, rel_tol=1e-3)
    share = number(text, "share") if name == "wide" else 1.0
    level = max(rms, number(text, "least for its row")) * share
    sensitivity = number(text, "sensitivity")
    assert level * (1 - 1e-6) <= sensitivity <= level * (1 + 2**-7)
    unit = number(text, f"ulp of {want.dtype}")
    assert unit == float(np.spacing(actual.dtype.type(abs(twin))))
    assert number(text, "sensitivity + ulp") == sensitivity + unit
    ratio = number(text, "ratio")
    assert math.isclose(ratio, abs(target - twin) / (sensitivity + unit), rel_tol=1e-12)

    base = re.search(r"pass up to (\S+), degraded up to (\S+)", text)
    assert base
    grown = re.search(r"sqrt\((\d+) / (\d+)\)", text)
    growth = math.sqrt(int(grown[1]) / int(grown[2])) if grown else 1.0
    passing, degraded = (float(base[i]) * growth for i in (1, 2))
    again = "pass" if ratio <= passing else "degraded" if ratio <= degraded else "fail"
    assert again == status
    assert text.startswith(f"{name}: {status}\n")


def test_the_bits_of_the_target_are_shown(
    operators: dict[str, Operator], reference: ReferenceModule, oracle: Oracle
) -> None:
    case = case_of(operators["product"], reference)
    actual = case.results[0].copy()
    actual[2, 2] = 1024.0
    text = explained(operators["product"], case, oracle, actual)
    assert "output_0" in text or "p2[2, 2]" in text
    assert "1024.0   0x44800000" in text


def test_where_the_limits_come_from_is_said(
    operators: dict[str, Operator], reference: ReferenceModule, oracle: Oracle
) -> None:
    operator = operators["product"]
    case = case_of(operator, reference)
    text = explained(operator, case, oracle, case.results[0])
    passing = DEFAULT_LIMITS["float32"]["product"].passing
    assert f"limits of float32 product (calibrated default): pass up to {passing}" in text
    override = Override("prod*", RatioLimits(90.0, 99.0), "measured on its bench", "float32")
    policy = replace(POLICY, overrides=(override,))
    text = explained(operator, case, oracle, case.results[0], policy)
    assert "override of prod* (float32): measured on its bench): pass up to 90.0" in text
    policy = Policy(limits=(("float32", "product", RatioLimits(1.0, 2.0)),))
    text = explained(operator, case, oracle, case.results[0], policy)
    assert "limits of float32 product (the policy): pass up to 1.0" in text


def test_a_value_out_of_place_has_no_ratio(
    operators: dict[str, Operator], reference: ReferenceModule, oracle: Oracle
) -> None:
    case = case_of(operators["product"], reference)
    actual = case.results[0].copy()
    actual[1, 1] = np.nan
    text = explained(operators["product"], case, oracle, actual)
    assert "ratio infinite: 1 elements are NaN" in text
    assert "inf > " in text


def test_moved_data_and_predicates_are_explained_too(
    operators: dict[str, Operator], reference: ReferenceModule, oracle: Oracle
) -> None:
    case = case_of(operators["permuted"], reference)
    text = explained(operators["permuted"], case, oracle, case.results[0])
    assert "no input was perturbed" in text and number(text, "ratio") == 0.0
    case = case_of(operators["positive"], reference)
    expectation = oracle.expect(case)
    flipped = ~case.results[0]
    verdict = judge(operators["positive"], expectation, case.results, [flipped], POLICY)
    text = explain(verdict, expectation, POLICY, operators["positive"])
    assert "540 of 540 elements are wrong" in text
    assert "a predicate may differ if float64's changed" in text


def test_an_output_without_elements_has_no_worst_one() -> None:
    operator = make_operator("none", [((0, 4), "float32")], op.exp)
    empty = np.zeros((0, 4), np.float32)
    case = MemoryCase("test", "none", (empty,), (empty,), ("activation",))
    want = ExpectedOutput("p1", "float32", "value", np.zeros((0, 4)), empty)
    expectation = Expectation((want,), 1, POLICY.repeats)
    verdict = judge(operator, expectation, [empty], [empty], POLICY)
    with Oracle({"none": operator}, compile_twins, POLICY) as own:
        trace = own.trace(case, expectation, 0, verdict.outputs[0].index)
    text = explain(verdict, expectation, POLICY, operator, traces={"p1": trace})
    assert trace.perturbed == ()
    assert "it has no elements" in text and text.startswith("none: pass\n")


def test_findings_and_suspects_are_said(
    operators: dict[str, Operator], reference: ReferenceModule, oracle: Oracle
) -> None:
    operator = operators["product"]
    case = case_of(operator, reference)
    expectation = oracle.expect(case)
    verdict = judge(operator, expectation, case.results, case.results, POLICY)
    verdict = verdict.with_finding(
        "fail", Finding(Cause.WRITE_OUTSIDE, "the kernel wrote 4 bytes outside its outputs")
    )
    text = explain(verdict, expectation, POLICY, operator)
    assert "  the kernel wrote 4 bytes outside its outputs\n" in text
    assert "suspect: target" in text
    assert "fail: the gravest of its outputs (pass) and of 1 finding" in text


def test_a_verdict_of_another_test_is_refused(
    operators: dict[str, Operator], reference: ReferenceModule, oracle: Oracle
) -> None:
    case = case_of(operators["product"], reference)
    expectation = oracle.expect(case)
    verdict = judge(operators["product"], expectation, case.results, case.results, POLICY)
    doubled = replace(verdict, outputs=verdict.outputs * 2)
    with pytest.raises(InputError, match="take both from one test"):
        explain(doubled, expectation, POLICY, operators["product"])

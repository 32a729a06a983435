"""A device's self-test explains an output's numbers and changes no limit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from tapml.oracles.explain import explain
from tapml.verdicts.device_effects import denormals_expected, effects
from tapml.verdicts.expectation import Expectation, ExpectedOutput
from tapml.verdicts.judge import judge
from tapml.verdicts.operator_class import OperatorClass
from tapml.verdicts.policy import Policy
from tapml.verdicts.verdict import Verdict
from tapml_targets.self_test.facts import Fact, SelfTest

VALUES = np.array([1.0, 2e-39, -3e-40, 1e-45, 0.5, 1e-20])


def fact(name: str, value: float | str, sound: bool | None, *, grave: bool = False) -> Fact:
    return Fact(name, value, "", "", sound, "measured", f"{name} is {value}", grave)


FLUSHES = SelfTest((fact("float32_denormal_results", "flushed", False),))
KEEPS = SelfTest((fact("float32_denormal_results", "kept", True),))
CONTRACTS = SelfTest((fact("float32_multiply_add", "fused", None),))
ROUGH = SelfTest((fact("float32_divide_error", 1.6, None),))
CUTS = SelfTest((fact("loop_iterations", 65_535, False, grave=True),))
LOSES_NAN = SelfTest((fact("float32_nan", "lost in add", False, grave=True),))
EVERYTHING = SelfTest(
    tuple(f for each in (FLUSHES, CONTRACTS, ROUGH, CUTS, LOSES_NAN) for f in each.facts)
)


@dataclass(frozen=True)
class Named:
    name: str = "gate"


def judged(
    got: list[float], operator_class: OperatorClass = "elementwise"
) -> tuple[Verdict, Expectation]:
    want = ExpectedOutput(
        "y", "float32", "value", VALUES, np.zeros(len(VALUES), np.float32),
        operator_class=operator_class,
    )  # fmt: skip
    expectation = Expectation((want,), 1, 3)
    outputs = (np.array(got, np.float32),)
    return judge(Named(), expectation, None, outputs, Policy()), expectation


def lines(self_test: SelfTest, verdict: Verdict, operator_class: str = "elementwise") -> str:
    (numbers,) = verdict.to_json()["outputs"]
    return "\n".join(effects(self_test, numbers, operator_class))


FLUSHED = [1.0, 0.0, 0.0, 0.0, 0.5, 1e-20]
OFF = [1.0, 2e-39, -3e-40, 1e-45, 0.5000002, 1e-20]
WRONG = [1.0, 2e-39, -3e-40, 1e-45, 0.7, 1e-20]


def test_denormals_of_the_expected_output_are_counted_and_placed() -> None:
    verdict, expectation = judged(FLUSHED)
    assert verdict.status == "pass"
    assert denormals_expected(FLUSHES, expectation.outputs[0]) == [
        "the device flushes denormals: these 3 elements are denormal in the expected output: "
        "[1], [2], [3]"
    ]
    assert denormals_expected(KEEPS, expectation.outputs[0]) == []
    # The third is within an ulp.
    assert "2 errors are of the size that this makes" in lines(FLUSHES, verdict)


def test_a_device_that_keeps_denormals_is_no_excuse() -> None:
    assert "yet the device keeps float32 denormals" in lines(KEEPS, judged(FLUSHED)[0])


def test_contraction_explains_an_ulp_and_no_more() -> None:
    assert "an ulp of the product or so may come of it" in lines(CONTRACTS, judged(OFF)[0])
    assert "this error is larger" in lines(CONTRACTS, judged(WRONG)[0])
    assert lines(CONTRACTS, judged(OFF)[0], "exact") == ""


def test_division_nans_and_what_is_grave_are_named() -> None:
    assert "divide is off by 1.6 ulp" in lines(ROUGH, judged(OFF)[0])
    assert lines(ROUGH, judged(OFF)[0], "product") == ""
    nan = judged([float("nan"), *OFF[1:]])[0]
    assert "NaN is lost in add" in lines(LOSES_NAN, nan)
    assert lines(LOSES_NAN, judged(OFF)[0]) == ""
    assert "the device is not sound: loop_iterations is 65535" in lines(CUTS, judged(OFF)[0])


@pytest.mark.parametrize("got", [FLUSHED, OFF, WRONG], ids=["flushed", "off", "wrong"])
@pytest.mark.parametrize("self_test", [FLUSHES, CONTRACTS, ROUGH, CUTS, EVERYTHING])
def test_a_verdict_is_the_same_with_a_self_test_and_without(
    got: list[float], self_test: SelfTest
) -> None:
    verdict, expectation = judged(got)
    without = explain(verdict, expectation, Policy(), Named())
    beside = explain(verdict, expectation, Policy(), Named(), self_test=self_test)
    told = beside.split("the device's self-test, which changes no limit:\n")
    assert len(told) == 2
    # What is left without the lines of the device is the text without it: the same limits,
    # ratios and conclusion.
    rest = told[1].partition("\n\n")[2]
    assert told[0] + rest == without


def test_infinite_ratios_of_a_strict_report_are_read() -> None:
    (numbers,) = judged([float("nan"), *OFF[1:]])[0].to_json()["outputs"]
    assert numbers["ratio"] == "inf"
    assert effects(CONTRACTS, numbers, "elementwise") == []


def test_problems_of_the_self_test_are_shown() -> None:
    verdict, expectation = judged(OFF)
    broken = SelfTest((), ("float64: the driver ended the process with signal SIGSEGV",))
    text = explain(verdict, expectation, Policy(), Named(), self_test=broken)
    assert "not measured: float64: the driver ended the process with signal SIGSEGV" in text

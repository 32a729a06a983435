"""When two implementations differ, and what is said of it."""

from __future__ import annotations

import numpy as np

from tapml.matrix.comparing import Comparison, ImplementationResult
from tapml.matrix.implementation import Implementation
from tapml.plan.graph_plan import Operator
from tapml.verdicts.expectation import Expectation, ExpectedOutput
from tapml.verdicts.policy import Policy
from tapml.verdicts.verdict import Cause, Status, Verdict, not_run
from tapml_targets.library import Parameter

OPERATOR = Operator(
    name="scale",
    hash="",
    parameters=(
        Parameter("input_0", (2,), "float32", "input"),
        Parameter("output_0", (2,), "float32", "output"),
    ),
    symbols=(),
    function="",
    script="",
    output_kinds=("value",),
)
EXPECTED = Expectation(
    (
        ExpectedOutput(
            "output_0", "float32", "value", np.array([1.0, 2.0]), np.zeros(2, np.float32),
            operator_class="elementwise", arithmetic="float32",
        ),
    ),
    terms=1,
    repeats=3,
)  # fmt: skip


def ran(label: str, status: Status, *values: float, compiler: str = "") -> ImplementationResult:
    """An implementation that gave these values; none where it gave nothing."""
    actual = (np.array(values, np.float32),) if values else ()
    who = Implementation(label, "webgpu", name=label, compiler=compiler)
    cause = Cause.NONE if status == "pass" else Cause.WRONG_VALUES
    verdict = Verdict(status, 0.0, (), f"{label} says {status}", cause=cause)
    return ImplementationResult(who, verdict, actual)


def compared(*tests: tuple[ImplementationResult, ...]) -> Comparison:
    """These tests, compared."""
    comparison = Comparison(OPERATOR, ("scale_kernel",), "webgpu", Policy())
    for number, each in enumerate(tests):
        comparison.add(f"test {number}", each, lambda: EXPECTED, lambda: EXPECTED)
    return comparison


def test_one_of_three_stands_alone_and_is_the_farther_from_float64() -> None:
    found = compared(
        (
            ran("a", "pass", 1, 2, compiler="naga"),
            ran("b", "fail", 1, 2.5, compiler="tint"),
            ran("c", "pass", 1, 2, compiler="naga"),
        )
    ).difference
    assert found is not None
    assert (found.kind, found.index, found.expected) == ("values", (1,), 2.0)
    assert found.groups == (("a", "c"), ("b",))
    assert found.sides == "a, c agree; b differs"
    assert found.suspects == ("b",)
    assert found.layer == "the sides have different compilers: naga against tint"
    assert [each.value for each in found.readings] == [2.0, 2.5, 2.0]


def test_equal_bits_and_a_few_ulp_are_no_difference() -> None:
    comparison = compared(
        (ran("a", "pass", 1, 2), ran("b", "pass", 1, 2), ran("c", "pass", 1, 2.0000002))
    )
    assert comparison.difference is None
    assert comparison.bits.identical == [["a", "b"], ["c"]]
    assert comparison.bits.max_ulps == 1


def test_what_all_get_wrong_in_the_same_way_is_no_difference() -> None:
    assert compared((ran("a", "fail", 1, 9), ran("b", "fail", 1, 9))).difference is None


def test_all_wrong_each_in_its_own_way_is_one_and_none_is_right() -> None:
    found = compared((ran("a", "fail", 1, 9), ran("b", "fail", 1, 7))).difference
    assert found is not None
    assert found.accused.startswith("all are wrong: a (")
    assert found.sides == "a and b differ from one another"


def test_two_that_are_as_far_from_float64_on_both_sides_accuse_nobody() -> None:
    """Each is within what is allowed; between them lies more."""
    beyond = compared((ran("a", "pass", 1, 2), ran("b", "fail", 1, 3))).difference
    assert beyond is not None
    off = round(0.6 * beyond.limit) * float(np.spacing(np.float32(2)))
    found = compared((ran("a", "pass", 1, 2 + off), ran("b", "pass", 1, 2 - off))).difference
    assert found is not None and found.kind == "values"
    assert (found.suspects, found.accused) == ((), "unknown: all are equally far from float64")


def test_a_verdict_that_the_other_does_not_share_is_a_difference_without_numbers() -> None:
    """Guard bands, a call that is refused, a kernel that does not build."""
    for other in (ran("b", "fail", 1, 2), ran("b", "fail")):
        found = compared((ran("a", "pass", 1, 2), other)).difference
        assert found is not None and found.kind == "verdicts"
        assert found.suspects == ("b",)
        assert any("b says fail" in line for line in found.lines())


def test_what_was_not_run_differs_from_nothing() -> None:
    absent = ImplementationResult(
        Implementation("b"), not_run(Cause.NO_DEVICE, "the device is gone")
    )
    assert compared((ran("a", "pass", 1, 2), absent)).difference is None


def test_the_gravest_test_is_shown_and_all_are_counted() -> None:
    near = (ran("a", "pass", 1, 2), ran("b", "fail", 1, 2.01))
    far = (ran("a", "pass", 1, 2), ran("b", "fail", 1, 3))
    found = compared(near, far, near).difference
    assert found is not None
    assert (found.test, found.tests, found.readings[1].value) == ("test 1", 3, 3.0)

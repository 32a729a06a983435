"""Verdicts on outputs written by hand: what passes, what does not, and whom the numbers accuse."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tapml.oracles.sensitivity import with_reference_ratio
from tapml.plan.graph_plan import OutputKind
from tapml.verdicts.expectation import Expectation, ExpectedOutput
from tapml.verdicts.index_source import IndexSource, find_source, locate_source
from tapml.verdicts.judge import judge
from tapml.verdicts.limits import DEFAULT_LIMITS
from tapml.verdicts.operator_class import OperatorClass
from tapml.verdicts.policy import Policy
from tapml.verdicts.verdict import Verdict
from tapml_targets.errors import InputError
from tapml_targets.float_formats import ulp
from tapml_targets.library import Parameter

OPERATOR = SimpleNamespace(name="softmax")
LIMITS = DEFAULT_LIMITS["float32"]["unclassified"]
F32_MAX = float(np.finfo(np.float32).max)
float32s = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=1, max_dims=3, max_side=6),
    elements=st.floats(-1e6, 1e6, width=32, allow_subnormal=False),
)


def expect(
    values: Any,
    *,
    dtype: str = "float32",
    kind: OutputKind = "value",
    sensitivity: Any = 0.0,
    source: IndexSource | None = None,
    reference: np.ndarray | None = None,
) -> Expectation:
    array = np.asarray(values, np.float64 if dtype.startswith(("float", "bfloat")) else dtype)
    moved = np.broadcast_to(np.asarray(sensitivity, np.float32), array.shape)
    output = ExpectedOutput("out", dtype, kind, array, moved, source)
    if reference is not None:
        output = with_reference_ratio(output, reference)
    return Expectation((output,), 1, 3)


def array_of(dtype: str) -> Callable[[Any], np.ndarray]:
    return lambda values: np.array(values, dtype)


float32, float16, uint16 = (array_of(name) for name in ("float32", "float16", "uint16"))
int8, int32, int64 = (array_of(name) for name in ("int8", "int32", "int64"))


def decide(expectation: Expectation, actual: np.ndarray, reference: Any = None) -> Verdict:
    references = None if reference is None else [reference]
    return judge(OPERATOR, expectation, references, [actual], Policy())


@given(float32s)
def test_the_rounded_float64_value_passes(values: np.ndarray) -> None:
    verdict = decide(expect(values.astype(np.float64)), values)
    assert verdict.status == "pass"
    assert verdict.worst_ratio <= 0.5


@given(float32s, st.floats(0.0, 2.0), st.data())
def test_the_ratio_decides(values: np.ndarray, share: float, data: st.DataObject) -> None:
    """One element off by a share of the limit: the status follows the limits and nothing else."""
    index = np.unravel_index(data.draw(st.integers(0, values.size - 1)), values.shape)
    want = values.astype(np.float64)
    scale = 1.0 + ulp(want, "float32")[index]
    want[index] += share * LIMITS.degraded * scale
    # ulp belongs to the expected value: measure with that one.
    scale = 1.0 + ulp(want, "float32")[index]
    ratio = abs(want[index] - float(values[index])) / scale
    verdict = decide(expect(want, sensitivity=1.0), values)
    assert math.isclose(verdict.worst_ratio, ratio, rel_tol=1e-9, abs_tol=0.51)
    status = "pass" if ratio <= LIMITS.passing else "degraded"
    assert verdict.status == (status if ratio <= LIMITS.degraded else "fail")


def test_a_failure_says_why_in_numbers() -> None:
    verdict = decide(expect([[1.0, 2.0], [3.0, 4.0]]), float32([[1, 2], [3, 4.5]]))
    assert verdict.status == "fail"
    assert verdict.suspect == "target"
    assert "out[1, 1]: |4.5 - 4| = 0.5" in verdict.reason
    assert f"limit {LIMITS.passing:g}" in verdict.reason
    assert "1 of 4 elements" in verdict.reason
    assert verdict.outputs[0].metrics is not None


def test_a_relative_error_near_zero_passes_where_the_sensitivity_allows_it() -> None:
    """A dot product that cancels to 1e-7 may be 100 percent off; a copy may not."""
    actual = float32([2e-7])
    assert decide(expect([1e-7], sensitivity=1e-7), actual).status == "pass"
    assert decide(expect([1e-7], sensitivity=0.0), actual).status == "fail"


def test_nan_and_infinity_match_in_place() -> None:
    values = [np.nan, np.inf, -np.inf, 1.0]
    assert decide(expect(values), float32(values)).status == "pass"


@pytest.mark.parametrize(
    ("want", "got"),
    [(np.nan, 1.0), (1.0, np.nan), (np.inf, -np.inf), (np.inf, F32_MAX), (5.0, np.inf)],
)
def test_nan_and_infinity_out_of_place_fail(want: float, got: float) -> None:
    verdict = decide(expect([0.0, want]), float32([0.0, got]))
    assert verdict.status == "fail"
    assert verdict.outputs[0].index == (1,)
    numbers = verdict.outputs[0]
    assert numbers.nan_mismatches + numbers.infinity_mismatches + numbers.over >= 1


def test_infinity_against_finite_passes_within_rounding_of_overflow() -> None:
    edge = F32_MAX
    step = float(ulp(np.array([edge]), "float32")[0])
    assert decide(expect([edge + 2 * step]), float32([np.inf])).status == "pass"
    assert decide(expect([edge - 2 * step]), float32([np.inf])).status == "pass"
    assert decide(expect([edge + 2 * step]), float32([edge])).status == "pass"
    assert decide(expect([edge / 2]), float32([np.inf])).status == "fail"
    assert decide(expect([-edge - 2 * step]), float32([np.inf])).status == "fail"


def test_float16_overflow_is_judged_at_its_own_limit() -> None:
    assert decide(expect([65530.0], dtype="float16"), float16([np.inf])).status == "pass"
    assert decide(expect([30000.0], dtype="float16"), float16([np.inf])).status == "fail"


def test_a_flushed_subnormal_is_shown_and_allowed_for_float32_only() -> None:
    verdict = decide(expect([1e-39, 1.0]), float32([0.0, 1.0]))
    assert verdict.status == "pass"
    assert verdict.outputs[0].flushed == 1
    assert "subnormal" in verdict.reason
    assert decide(expect([1.5e-38]), float32([1.2e-38])).status == "pass"
    assert decide(expect([1e-30]), float32([0.0])).status == "fail"
    assert decide(expect([3e-5], dtype="float16"), float16([0.0])).status == "fail"


def test_bfloat16_is_judged_from_its_raw_bits() -> None:
    bits = uint16([0x3F80, 0x4000])  # 1.0 and 2.0
    assert decide(expect([1.0, 2.0], dtype="bfloat16"), bits).status == "pass"
    assert decide(expect([1.0, 40.0], dtype="bfloat16"), bits).status == "fail"


def test_integers_are_equal_or_wrong() -> None:
    want = expect([1, 2, 3], dtype="int32", sensitivity=5.0)
    assert decide(want, int32([1, 2, 3])).status == "pass"
    verdict = decide(want, int32([1, 2, 4]))
    assert (verdict.status, verdict.worst_ratio) == ("fail", math.inf)
    assert "out[2]: expected 3" in verdict.reason


def test_a_code_may_be_off_by_one_at_a_rounding_boundary_only() -> None:
    want = expect([10, 20], dtype="int8", kind="code", sensitivity=[1.0, 0.0])
    assert decide(want, int8([11, 20])).status == "pass"
    assert decide(want, int8([12, 20])).status == "fail"
    assert decide(want, int8([10, 21])).status == "fail"


def test_a_predicate_may_differ_only_where_float64_is_undecided() -> None:
    want = expect([True, False], dtype="bool", kind="predicate", sensitivity=[1.0, 0.0])
    assert decide(want, np.array([False, False])).status == "pass"
    assert decide(want, np.array([True, True])).status == "fail"


def test_an_index_is_right_when_the_value_at_it_is() -> None:
    values = np.array([[3.0, 7.0, 7.0, 1.0]])
    want = expect([1], dtype="int64", kind="index", source=IndexSource(values, 1, True))
    assert decide(want, int64([1])).status == "pass"
    assert decide(want, int64([2])).status == "pass"
    assert decide(want, int64([0])).status == "fail"
    assert decide(want, int64([4])).status == "fail"
    assert decide(want, int64([-1])).status == "fail"


def test_sorted_indices_may_swap_ties_but_not_repeat_one() -> None:
    values = np.array([[5.0, 5.0, 9.0, 1.0]])
    source = IndexSource(values, 1, drops_axis=False)
    want = expect([[2, 0, 1, 3]], dtype="int32", kind="index", source=source)
    assert decide(want, int32([[2, 1, 0, 3]])).status == "pass"
    assert decide(want, int32([[2, 0, 0, 3]])).status == "fail"
    assert decide(want, int32([[0, 2, 1, 3]])).status == "fail"


def test_a_wrong_reference_is_suspect_rather_than_a_right_target() -> None:
    reference = float32([1.0, 2.5])
    want = expect([1.0, 2.0], reference=reference)
    verdict = decide(want, float32([1.0, 2.0]), reference)
    assert (verdict.status, verdict.suspect) == ("pass", "reference")
    assert "the reference is suspect" in verdict.reason


def test_a_target_that_agrees_with_a_reference_that_is_off_is_not_accused() -> None:
    reference = float32([1.0, 2.5])
    want = expect([1.0, 2.0], reference=reference)
    verdict = decide(want, reference.copy(), reference)
    assert (verdict.status, verdict.suspect) == ("degraded", "reference")
    assert "agrees with the target" in verdict.reason


def test_a_target_that_is_off_in_its_own_way_is_accused_beside_the_reference() -> None:
    reference = float32([1.0, 2.5])
    want = expect([1.0, 2.0], reference=reference)
    verdict = decide(want, float32([900.0, 2.0]), reference)
    assert (verdict.status, verdict.suspect) == ("fail", "target and reference")


def test_the_gravest_output_speaks_for_the_operator() -> None:
    first = expect([1.0]).outputs[0]
    second = expect([1, 2], dtype="int32").outputs[0]
    both = Expectation((first, second), 1, 3)
    verdict = judge(OPERATOR, both, None, [float32([1.0]), int32([1, 3])], Policy())
    assert verdict.status == "fail"
    assert "int32" in verdict.reason
    assert [output.status for output in verdict.outputs] == ["pass", "fail"]


def test_longer_sums_may_be_further_off() -> None:
    output = expect([1.0], sensitivity=0.0).outputs[0]
    actual = float32([1.0 + 200 * 2.0**-23])
    short, long = (Expectation((output,), terms, 3) for terms in (64, 4096))
    assert judge(OPERATOR, short, None, [actual], Policy()).status == "degraded"
    assert judge(OPERATOR, long, None, [actual], Policy()).status == "pass"


@pytest.mark.parametrize("operator_class", ["transcendental", "elementwise", "product"])
def test_what_underflows_on_the_way_is_as_good_as_flushed(operator_class: OperatorClass) -> None:
    """A subnormal number times a thousand, or the exponential of -90 in a sigmoid."""
    output = replace(expect([-2e-37]).outputs[0], operator_class=operator_class)
    lost = float32([0.0])
    verdict = judge(OPERATOR, Expectation((output,), 1, 3), None, [lost], Policy())
    assert (verdict.status, verdict.outputs[0].flushed) == ("pass", 1)
    output = replace(output, operator_class="exact")
    verdict = judge(OPERATOR, Expectation((output,), 1, 3), None, [lost], Policy())
    assert verdict.status == "fail"


def test_a_nan_of_the_reference_excuses_no_error_of_the_target() -> None:
    reference = float32([1.0, np.nan, 1.0])
    off = expect([1.0, 1.0, 1.0], reference=reference)
    verdict = decide(off, float32([1e6, 1.0, 1.0]), reference)
    assert (verdict.status, verdict.suspect) == ("fail", "target and reference")
    verdict = decide(off, reference, reference)
    assert (verdict.status, verdict.suspect) == ("degraded", "reference")


@pytest.mark.parametrize("kind", ["value", "state", "code", "index"])
def test_integers_that_float64_does_not_hold_are_told_apart(kind: OutputKind) -> None:
    want = expect([2**53, 7], dtype="int64", kind=kind)
    assert decide(want, int64([2**53, 7])).status == "pass"
    assert decide(want, int64([2**53 + 1, 7])).status == "fail"


def test_the_place_of_a_source_says_which_of_two_tensors_it_is() -> None:
    """The other one, of the same shape, holds zeros: any index points at the largest of them."""
    inputs = [np.zeros((4, 8), np.float32), np.arange(32, dtype=np.float32).reshape(4, 8) % 7]
    indices = inputs[1].argmax(axis=1)
    source = find_source(indices, [each.astype(np.float64) for each in inputs])
    want = expect(indices, dtype="int64", kind="index", source=source)
    parameters = [Parameter(name, (4, 8), "float32", "input") for name in ("x", "y")]
    place = want.outputs[0].source_place
    found = locate_source(place, parameters, inputs, indices.shape)
    again = expect(indices, dtype="int64", kind="index", source=found)
    for expectation in (want, again):
        assert decide(expectation, indices).status == "pass"
        assert decide(expectation, (indices + 1) % 8).status == "fail"


def test_a_wrong_shape_is_refused_with_both_shapes() -> None:
    with pytest.raises(InputError, match=r"'out' has shape \(3,\), expected \(2,\)"):
        decide(expect([1.0, 2.0]), float32([1, 2, 3]))


def test_an_empty_output_passes() -> None:
    assert decide(expect(np.zeros((0, 4))), np.zeros((0, 4), np.float32)).status == "pass"


def test_a_verdict_is_strict_json() -> None:
    verdict = decide(expect([1.0]), float32([np.nan]))
    text = json.dumps(verdict.to_json(), allow_nan=False)
    assert json.loads(text)["worst_ratio"] == "inf"

"""Model-wise verdicts on logits written by hand, and the allowed error's two sources."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tapml.verdicts.modelwise import (
    DEGRADED_FACTOR,
    FLOOR_ULPS,
    ROOTED_FACTOR,
    AllowedLogitError,
    allowed_logit_error,
    compare_logits,
    compare_tokens,
    gravest,
    margins,
)
from tapml_targets.errors import InputError

TENTH = AllowedLogitError(0.1, 0.1, 0.0)


def test_allowed_error_is_the_larger_of_rooting_and_dtype() -> None:
    logits = np.array([[-16.0, 8.0, -np.inf]], np.float32)
    floor = FLOOR_ULPS["float32"] * 2.0**-23 * 16
    assert allowed_logit_error("float32", logits, 0.0).value == floor
    assert allowed_logit_error("float32", logits, 1.0).value == ROOTED_FACTOR
    assert "deviation from PyTorch" in str(allowed_logit_error("float32", logits, 1.0))
    assert "ulp of the largest logit" in str(allowed_logit_error("float32", logits, 0.0))
    floor = FLOOR_ULPS["float16"] * 2.0**-10 * 16
    assert allowed_logit_error("float16", logits, 0.0).value == floor


@pytest.mark.parametrize("deviation", [-1.0, math.nan, math.inf])
def test_an_unrooted_reference_is_refused(deviation: float) -> None:
    with pytest.raises(InputError, match="root the reference"):
        allowed_logit_error("float32", np.zeros((1, 2)), deviation)


def test_an_error_within_the_allowed_passes_and_says_the_numbers() -> None:
    want = np.array([[5.0, 1.0, 0.0], [1.0, 1.05, 0.0]])
    verdict = compare_logits(want, want + 0.09, TENTH)
    assert verdict.status == "pass"
    assert (verdict.positions, verdict.decided, verdict.parted) == (2, 1, 0)
    assert math.isclose(verdict.max_absolute, 0.09)
    assert verdict.max_kl < 1e-12
    assert "allowed 0.1" in verdict.reason


def test_logits_that_are_all_zero_and_equal_have_no_error() -> None:
    zeros = np.zeros((2, 3), np.float32)
    verdict = compare_logits(zeros, zeros, allowed_logit_error("float32", zeros, 0.0))
    assert (verdict.status, verdict.severity) == ("pass", 0.0)


def test_a_close_race_may_end_the_other_way() -> None:
    want = np.array([[1.0, 1.05, 0.0]])
    got = np.array([[1.06, 1.0, 0.0]])
    verdict = compare_logits(want, got, TENTH)
    assert (verdict.status, verdict.top1_agreement, verdict.decided) == ("pass", 0.0, 0)


def test_another_winner_by_a_clear_margin_fails() -> None:
    want = np.array([[5.0, 1.0], [1.0, 5.0]])
    got = np.array([[5.0, 1.0], [5.1, 5.0]])
    verdict = compare_logits(want, got, TENTH)
    assert (verdict.status, verdict.parted, verdict.worst_position) == ("fail", 1, 1)
    assert "another token wins at 1 of 2 positions" in verdict.reason


@given(st.floats(0.0, 2.0))
def test_the_error_alone_decides_where_no_winner_changes(share: float) -> None:
    want = np.array([[50.0, 0.0]])
    error = share * DEGRADED_FACTOR * TENTH.value
    verdict = compare_logits(want, want + np.array([[0.0, error]]), TENTH)
    bound = verdict.max_absolute
    expected = "pass" if bound <= 0.1 else "degraded" if bound <= DEGRADED_FACTOR * 0.1 else "fail"
    assert verdict.status == expected


def test_nan_out_of_place_fails_and_masked_vocabulary_does_not() -> None:
    want = np.array([[5.0, -np.inf, 0.0]])
    assert compare_logits(want, want.copy(), TENTH).status == "pass"
    verdict = compare_logits(want, np.array([[5.0, -np.inf, np.nan]]), TENTH)
    assert verdict.status == "fail"
    assert json.loads(json.dumps(verdict.to_json(), allow_nan=False))["max_absolute"] == "inf"


@given(
    hnp.arrays(np.float64, (4, 6), elements=st.floats(-30, 30)),
    hnp.arrays(np.float64, (4, 6), elements=st.floats(-30, 30)),
)
def test_divergence_is_that_of_the_definition(want: np.ndarray, got: np.ndarray) -> None:
    verdict = compare_logits(want, got, TENTH)
    p, q = (np.exp(x) / np.exp(x).sum(axis=1, keepdims=True) for x in (want, got))
    assert math.isclose(
        verdict.max_kl, float((p * np.log(p / q)).sum(axis=1).max()), rel_tol=1e-6, abs_tol=1e-9
    )


def test_margins_are_best_minus_second_best() -> None:
    logits = np.array([[1.0, 4.0, 3.5], [2.0, 2.0, 2.0], [np.inf, np.inf, 0.0]])
    with np.errstate(all="ignore"):
        assert margins(logits).tolist() == [0.5, 0.0, 0.0]
    assert margins(np.array([[3.0]])).tolist() == [math.inf]


def test_no_position_is_not_run() -> None:
    assert compare_logits(np.zeros((0, 8)), np.zeros((0, 8)), TENTH).status == "not run"


def test_other_shapes_are_refused() -> None:
    with pytest.raises(InputError, match=r"\(2, 3\) and \(2, 4\)"):
        compare_logits(np.zeros((2, 3)), np.zeros((2, 4)), TENTH)


def test_tokens_part_where_they_first_differ_with_the_margin_there() -> None:
    logits = np.array([[0.0, 3.0, 1.0], [2.0, 0.0, 1.9]])
    found = compare_tokens([1, 0], [1, 2], logits)
    assert (found.first_parting, found.reference_token, found.target_token) == (1, 0, 2)
    assert found.margin is not None and math.isclose(found.margin, 0.1)
    assert "part at 2 of 2" in found.text
    assert compare_tokens([1, 0], [1, 0]).first_parting is None
    assert "one side stopped" in compare_tokens([1, 0, 4], [1, 0]).text


def test_the_gravest_prompt_speaks_for_the_model() -> None:
    want = np.array([[50.0, 0.0]])
    errors = (0.05, 0.3, 0.2, 0.0)
    verdicts = [compare_logits(want, want + np.array([[0.0, e]]), TENTH) for e in errors]
    assert gravest(verdicts) is verdicts[1]
    with pytest.raises(InputError, match="at least one case"):
        gravest([])

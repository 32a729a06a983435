"""The published distances, and the elementwise tier."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tapml.comparing import metrics
from tapml.comparing.verdicts import Thresholds, Truth, judge, truth_of
from tapml_targets.errors import InputError

CONFIDENCES = arrays.arrays(np.float64, (6, 7), elements=st.floats(0, 1))
LABELS = np.array([0, 1, 2, 3, 4, 6])


def test_the_papers_example_of_a_class_distance() -> None:
    tensorflow = np.array([[0.9, 0.03, 0.02, 0.02, 0.02, 0.01]])
    cntk = np.array([[0.01, 0.9, 0.03, 0.02, 0.02, 0.02]])
    third = np.array([[0.2, 0.3, 0.4, 0.05, 0.03, 0.02]])
    label = np.array([0])
    assert metrics.class_distance(tensorflow, cntk, label) == 16
    assert metrics.class_distance(tensorflow, third, label) == 12


@given(CONFIDENCES, CONFIDENCES)
def test_distances_are_symmetric_and_within_their_range(
    first: metrics.Floats, second: metrics.Floats
) -> None:
    distance = metrics.class_distance(first, second, LABELS)
    assert ((distance >= 0) & (distance <= 16)).all()
    assert (distance == metrics.class_distance(second, first, LABELS)).all()
    truth = metrics.one_hot(LABELS, 7)
    mad = metrics.mad_distance(first, second, truth)
    assert ((mad >= 0) & (mad <= 1)).all()
    assert (mad == metrics.mad_distance(second, first, truth)).all()
    assert sum(metrics.class_pattern(distance).values()) == 6
    assert sum(metrics.mad_pattern(mad).values()) == 6


def test_a_pattern_counts_instances_by_bin() -> None:
    found = metrics.class_pattern(np.array([16.0, 15, 8, 7, 4, 3, 2, 1, 0, 0]))
    assert list(found.values()) == [1, 2, 2, 2, 1, 2]


def test_nan_and_inf_in_the_same_places_are_equal() -> None:
    one = np.array([[1.0, np.nan, np.inf], [1.0, 1.0, 1.0]])
    other = np.array([[1.0, np.nan, np.inf], [1.0, np.nan, 1.0]])
    assert metrics.relative_deviation(one, other).tolist() == [0.0, np.inf]


def test_a_tie_that_rounding_breaks_is_no_inconsistency() -> None:
    one = np.array([[0.5, 0.5 - 1e-7], [0.9, 0.1]])
    other = np.array([[0.5 - 1e-7, 0.5], [0.9, 0.1]])
    verdict = judge(
        {"y": one}, {"y": other}, Truth("classification", np.array([0, 0])), Thresholds()
    )
    assert verdict.metrics["D_CLASS"]["triggering"] == verdict.metrics["D_CLASS"]["ties"] == 1
    assert verdict.status == "agree"


def test_deviations_below_the_threshold_are_kept_for_a_layer_to_confirm() -> None:
    one, other = np.array([[0.5, 0.5], [0.9, 0.1]]), np.array([[0.5, 0.5], [0.9003, 0.0997]])
    verdict = judge({"y": one}, {"y": other}, Truth("none"), Thresholds())
    assert verdict.status == "agree"
    assert verdict.metrics["near"]["instances"] == "1" and verdict.metrics["near"]["share"] == 0.5
    few = judge({"y": one}, {"y": other}, Truth("none"), Thresholds(confirmed=1e-3))
    assert "near" not in few.metrics
    # A layer is sought on one of those, though another has the larger distance to its label.
    one, other = np.array([[1.0], [1.0]]), np.array([[1.0002], [1.0005]])
    truth = Truth("regression", np.array([[0.9999], [3.0]]))
    limits = Thresholds(confirmed=4e-4, mad_distance=1.0)
    assert judge({"y": one}, {"y": other}, truth, limits).worst == 1


def test_a_small_change_that_turns_a_class_is_one() -> None:
    one = np.array([[0.5003, 0.4997], [0.9, 0.1]])
    other = np.array([[0.4998, 0.5002], [0.9, 0.1]])
    verdict = judge(
        {"y": one}, {"y": other}, Truth("classification", np.array([0, 0])), Thresholds()
    )
    assert (verdict.status, verdict.worst) == ("inconsistent", 0)
    assert verdict.metrics["elementwise"]["triggering"] == 0


def test_a_regression_is_judged_by_d_mad() -> None:
    one, other = np.array([[0.4], [0.2]]), np.array([[-0.1], [0.2]])
    truth = truth_of(np.array([0.0, 0.2]), [{"angle": one}])
    verdict = judge({"angle": one}, {"angle": other}, truth, Thresholds())
    assert verdict.metrics["D_MAD"]["largest"] == pytest.approx(0.6)
    assert "D_CLASS" not in verdict.metrics
    assert (verdict.status, verdict.worst) == ("inconsistent", 0)


def test_labels_that_do_not_fit_the_output_are_refused() -> None:
    with pytest.raises(InputError, match="do not fit the output"):
        truth_of(np.array([0.5, 0.2, 0.1]), [{"angle": np.zeros((2, 1))}])


@pytest.mark.parametrize("labels", [np.eye(3)[[2, 0]], np.array([2.0, 0.0]), np.array([[2], [0]])])
def test_classes_may_be_floats(labels: np.ndarray[Any, Any]) -> None:
    chances = {"chances": np.array([[0.1, 0.2, 0.7], [0.8, 0.1, 0.1]])}
    found = truth_of(labels, [chances])
    assert found.task == "classification" and found.labels is not None
    assert found.labels.tolist() == [2, 0]
    with pytest.raises(InputError, match="and float64 do not fit the output"):
        truth_of(np.array([2.0, np.nan]), [chances])


def test_whole_numbers_are_targets_where_one_column_holds_no_probability() -> None:
    found = truth_of(np.array([20, 300]), [{"price": np.array([[19.0], [301.0]])}])
    assert found.task == "regression"
    with pytest.raises(InputError, match="the model has 2 classes"):
        truth_of(np.array([0, 2]), [{"chance": np.array([[0.3], [0.9]])}])


def test_one_column_of_logits_parts_two_classes_at_zero() -> None:
    one, other = np.array([0.3, 2.0]), np.array([-0.3, 2.0])
    truth = truth_of(np.array([1, 1]), [{"logit": one}])
    found = judge({"logit": one}, {"logit": other}, truth, Thresholds()).metrics
    assert found["D_CLASS"]["accuracy"][0][0] == 1 and found["D_CLASS"]["largest"] == 8


def test_nan_of_one_instance_makes_no_logits_of_the_probabilities_of_others() -> None:
    one = {"chance": np.array([[0.3], [0.9], [np.nan]])}
    found = judge(one, one, truth_of(np.array([0, 1, 1]), [one]), Thresholds()).metrics
    assert found["D_CLASS"]["accuracy"][0][0] == 1


def test_labels_are_about_the_first_output_of_floats() -> None:
    outputs = {"label": np.array([1, 0]), "chances": np.array([[0.1, 0.9], [0.8, 0.2]])}
    assert truth_of(None, [outputs]).labels is not None
    assert truth_of(np.array([1, 0]), [outputs]).task == "classification"


def test_nan_on_both_sides_is_said() -> None:
    one = {"y": np.array([[np.nan, 1.0], [1.0, 1.0]])}
    verdict = judge(one, one, truth_of(np.array([0, 1]), [one]), Thresholds())
    assert verdict.status == "agree" and "1 of 2 instances have NaN" in verdict.reason


def test_an_output_over_all_instances_counts_for_each() -> None:
    one: dict[str, np.ndarray[Any, Any]] = {"loss": np.array(1.0, np.float32), "y": np.ones((3, 2))}
    other: dict[str, np.ndarray[Any, Any]] = {
        "loss": np.array(1.5, np.float32),
        "y": np.ones((3, 2)),
    }
    verdict = judge(one, other, Truth("none"), Thresholds(), instances=3)
    assert (verdict.status, verdict.metrics["elementwise"]["triggering"]) == ("inconsistent", 3)

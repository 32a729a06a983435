"""An element that stood still by accident is raised to its row's level; an exact one is not."""

from __future__ import annotations

import numpy as np

from tapml.oracles.sensitivity import row_levels
from tapml_targets.float_formats import Float64s


def smooth(sensitivity: Float64s, *, lost: float = 0.0) -> Float64s:
    """What an expectation makes of sensitivities as they were measured."""
    return np.maximum(sensitivity, row_levels(sensitivity, lost=lost))


def test_what_hardly_moved_by_accident_is_raised_to_half_of_its_row() -> None:
    sensitivity = np.ones((2, 64))
    sensitivity[1, 3] = 0.02
    smoothed = smooth(sensitivity)
    assert 0.49 < smoothed[1, 3] < 0.5
    assert np.array_equal(np.delete(smoothed, 67), np.delete(sensitivity, 67))


def test_masked_scores_do_not_speak_for_those_beside_them() -> None:
    scores = np.full((1, 64), 60.0)
    scores[0, :8] = 1e-6
    assert np.all(smooth(scores)[0, :8] <= 32e-6)


def test_a_row_that_cannot_be_measured_is_left_as_it_is() -> None:
    sensitivity = np.ones((1, 64))
    sensitivity[0, 0] = np.inf
    assert np.array_equal(smooth(sensitivity), sensitivity)


def test_behind_a_flat_function_an_element_is_raised_to_what_may_be_lost_and_no_further() -> None:
    sensitivity = np.full((1, 64), 1e-12)
    sensitivity[0, 0] = 1e20
    assert np.allclose(smooth(sensitivity, lost=1e-6)[0, 1:], 1e-6)
    sensitivity[0, 0] = 1e-7
    assert np.all(smooth(sensitivity, lost=1e-6)[0, 1:] < 1e-8), "nor above its row"


def test_a_row_that_lies_in_the_tail_of_a_flat_function_is_raised_as_the_others_are() -> None:
    sensitivity = np.full((8, 256), 1e-7)
    sensitivity[3] = 1e-13
    assert np.allclose(smooth(sensitivity, lost=1e-6)[3], 5e-8)
    assert np.all(smooth(sensitivity)[3] < 1e-12)

"""Outputs of calls that take a few instances each, put together."""

from __future__ import annotations

import numpy as np
import pytest

from tapml.backends.steps import in_steps
from tapml_targets.errors import UnsupportedOperatorError


@pytest.mark.parametrize(("count", "step"), [(5, 2), (4, 2), (3, 1)])
@pytest.mark.parametrize("equal", [True, False])
def test_several_rows_of_an_instance_are_as_many_as_without_steps(
    count: int, step: int, equal: bool
) -> None:
    x = np.ones(count) if equal else np.arange(count)
    (found,) = in_steps(lambda given: [np.repeat(given["x"], 3)], {"x": x}, step)
    np.testing.assert_array_equal(found, np.repeat(x, 3))


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_constant_of_calls_on_other_values_is_there_once(step: int) -> None:
    anchors = np.array([[1.0, np.nan]] * 6)
    (found,) = in_steps(lambda _: [anchors], {"x": np.arange(5)}, step)
    np.testing.assert_array_equal(found, anchors)


def test_rows_that_each_call_makes_are_all_there_unless_they_differ_in_shape() -> None:
    def positive(given: object) -> list[np.ndarray]:
        return [given["x"][given["x"] > 1]]  # type: ignore[index]

    (found,) = in_steps(positive, {"x": np.arange(6)}, 2)
    np.testing.assert_array_equal(found, [2, 3, 4, 5])
    with pytest.raises(UnsupportedOperatorError, match=r"\(1, 0\), \(1, 1\)"):
        in_steps(lambda given: [positive(given)[0][None]], {"x": np.arange(3)}, 1)

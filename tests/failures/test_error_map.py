"""Error maps: a tail, a stride and a NaN can be read off them."""

from __future__ import annotations

import numpy as np

from tapml.failures.error_map import describe_errors
from tapml.verdicts.expectation import ExpectedOutput


def page(damage: object, values: object) -> str:
    want = np.arange(1.0, 49.0).reshape(4, 12)
    got = want.astype(np.float32)
    got[damage] = values  # type: ignore[call-overload]
    output = ExpectedOutput("out", "float32", "value", want, np.zeros((4, 12), np.float32))
    with np.errstate(all="ignore"):
        return describe_errors(output, got, 32.0)


def test_a_skipped_tail_shows_as_a_range() -> None:
    text = page((slice(None), slice(9, None)), 0.0)
    assert "12 of 48 elements are wrong" in text
    assert "axis 0: everywhere (0..3)" in text
    assert "axis 1: 9..11 of 0..11" in text
    assert "the last 3 of 12 along axis 1 (from 9 on" in text


def test_a_stride_shows_as_its_places() -> None:
    text = page((2, slice(1, None, 5)), 0.0)
    assert "axis 0: 2 of 0..3" in text
    assert "axis 1: 1, 6, 11 of 0..11" in text


def test_the_worst_elements_come_first_with_both_values() -> None:
    text = page((slice(0, 2), 0), [500.0, np.nan])
    assert "NaN mismatches 1" in text
    first, second = text.splitlines()[-2:]
    assert first.startswith("  [1, 0]: 13.0, nan, inf")
    assert second.startswith("  [0, 0]: 1.0, 500.0, ")


def test_integers_are_mapped_too() -> None:
    output = ExpectedOutput(
        "out", "int32", "value", np.array([1, 2, 3], np.int32), np.zeros(3, np.float32)
    )
    text = describe_errors(output, np.array([1, 9, 3], np.int32), 0.0)
    assert "1 of 3 elements are wrong" in text
    assert "[1]: 2, 9" in text


def test_a_right_output_has_no_places() -> None:
    assert "0 of 48 elements are wrong" in page((0, 0), 1.0)

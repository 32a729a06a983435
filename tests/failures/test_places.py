"""Planted patterns of wrong elements are found and said in the simplest words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tapml.failures.places import EXPLAINED, describe_places, describe_values, ordinal, patterns_of

SHAPES = st.lists(st.integers(2, 40), min_size=1, max_size=3).map(tuple)


def mask(shape: tuple[int, ...], *index: Any) -> NDArray[np.bool_]:
    wrong = np.zeros(shape, np.bool_)
    wrong[index] = True
    return wrong


def first(wrong: NDArray[np.bool_]) -> str:
    return patterns_of(wrong)[0].sentence


def test_a_right_output_has_no_pattern_and_a_wrong_one_is_wrong_everywhere() -> None:
    assert describe_places("out", np.zeros((3, 4), np.bool_)) == []
    assert describe_places("out", np.ones((3, 4), np.bool_)) == ["out: all 12 elements are wrong"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (mask((12, 100), slice(None), slice(96, None)), "the last 4 of 100 along axis 1 (from 96"),
        (mask((12, 100), slice(None), slice(96, None)), "beyond the last full multiple of 8 or 16"),
        (mask((12, 100), 3), "only index 3 of 0..11 along axis 0"),
        (mask((12, 100), slice(None), slice(2, None, 5)), "every 5th along axis 1, from 2 on"),
        (mask((12, 100), slice(0, 4), slice(None)), "the first 4 of 12 along axis 0, a full block"),
        (mask((16, 64), slice(4, 8), slice(32, 48)), "32..47 of 0..63 along axis 1, block 2 of 16"),
        (mask((12, 100), 11, 99), "only element [11, 99] (the last)"),
        (mask((12, 100), slice(None), [1, 7, 30]), "1, 7, 30 of 0..99 along axis 1"),
        (mask((9, 64), slice(None), np.arange(64) % 8 < 3), "0, 1, 2 modulo 8 along axis 1"),
        (np.triu(np.ones((20, 20), np.bool_), 1), "above the diagonal of the last two axes"),
        (np.arange(1200).reshape(12, 100) >= 1150, "the last 50 of 1200 in memory order"),
        ((np.arange(1200) % 7 == 1).reshape(12, 100), "every 7th in memory order, from 1 on"),
        ((abs(np.arange(1200) - 400) < 77).reshape(12, 100), "324..476 of 0..1199 in memory order"),
    ],
)
def test_known_patterns_are_said_first(wrong: NDArray[np.bool_], words: str) -> None:
    assert words in first(wrong)


def test_a_region_that_is_not_quite_full_is_said_with_its_share() -> None:
    wrong = mask((40, 100), slice(None), slice(64, None))
    wrong[np.arange(40), 64 + np.arange(40) % 36] = False
    assert "the last 36 of 100 along axis 1" in first(wrong)
    assert "97 % of the elements there" in first(wrong)


def test_a_few_strays_do_not_hide_a_pattern() -> None:
    wrong = mask((40, 100), slice(None), slice(80, None))
    wrong[7, 3] = True
    assert "the last 20 of 100 along axis 1" in first(wrong)
    assert "1 are elsewhere" in first(wrong)


def test_what_has_no_pattern_is_scattered() -> None:
    wrong = np.random.default_rng(0).random((30, 50)) < 0.1
    assert "scattered (" in first(wrong)
    assert "at 30 of 30 indices of axis 0" in first(wrong)
    assert "at [0, 5], [2, 2]" in first(mask((9, 9), [0, 2], [5, 2]))


@given(SHAPES, st.data())
def test_a_planted_box_is_found_whole(shape: tuple[int, ...], data: st.DataObject) -> None:
    ranges = []
    for extent in shape:
        start = data.draw(st.integers(0, extent - 1))
        ranges.append(slice(start, data.draw(st.integers(start + 1, extent))))
    wrong = mask(shape, *ranges)
    best = patterns_of(wrong)[0]
    assert best.explained == 1.0
    assert best.dense == 1.0
    assert "scattered" not in best.sentence


@pytest.mark.parametrize(
    ("number", "word"),
    [
        (2, "second"), (3, "third"), (4, "4th"), (10, "10th"), (11, "11th"), (12, "12th"),
        (13, "13th"), (20, "20th"), (21, "21st"), (22, "22nd"), (23, "23rd"), (24, "24th"),
        (33, "33rd"), (61, "61st"), (64, "64th"), (101, "101st"), (111, "111th"), (113, "113th"),
    ],
)  # fmt: skip
def test_an_ordinal_has_the_ending_that_is_read(number: int, word: str) -> None:
    assert ordinal(number) == word


@given(st.integers(2, 9), st.integers(2, 64), st.data())
def test_a_planted_stride_is_found(rows: int, step: int, data: st.DataObject) -> None:
    columns = data.draw(st.integers(3 * step, 3 * step + 60))
    offset = data.draw(st.integers(0, step - 1))
    sentence = first(mask((rows, columns), slice(None), slice(offset, None, step)))
    assert f"every {ordinal(step)} along axis 1, from {offset} on" in sentence


@given(SHAPES, st.integers(0, 2**32 - 1), st.floats(0.0, 1.0))
def test_every_mask_gets_a_sentence_that_counts_right(
    shape: tuple[int, ...], seed: int, share: float
) -> None:
    wrong = np.random.default_rng(seed).random(shape) < share
    found = patterns_of(wrong)
    assert bool(found) == bool(wrong.any())
    for pattern in found:
        assert pattern.explained >= EXPLAINED
        assert str(int(wrong.sum())) in pattern.sentence or "only element" in pattern.sentence


@given(SHAPES)
def test_a_tail_in_memory_is_found(shape: tuple[int, ...]) -> None:
    size = int(np.prod(shape))
    assume(size > 8)
    wrong = (np.arange(size) >= size - 3).reshape(shape)
    assert patterns_of(wrong)[0].explained == 1.0
    assert "the last" in first(wrong)


def test_elements_that_an_inputs_value_decides_are_told_by_it() -> None:
    generator = np.random.default_rng(0)
    codes = generator.integers(-128, 128, (6, 64)).astype(np.int8)
    scale = generator.random((6, 1))
    (said,) = describe_values("out", codes < 0, {"input_0": codes, "input_1": scale})
    assert said == "out: wrong exactly where input_0 is at most -1 (elsewhere it is at least 0)"
    values = generator.standard_normal((6, 64)) * 30
    (said,) = describe_values("out", np.abs(values) > 45.0, {"input_0": values})
    assert said.startswith("out: wrong exactly where |input_0| is at least 45.")
    (said,) = describe_values("out", np.repeat(scale > 0.5, 64, 1), {"input_1": scale})
    assert "input_1 is at least 0.5" in said


def test_a_split_that_chance_explains_is_not_told() -> None:
    values = np.arange(12.0).reshape(3, 4)
    assert describe_values("out", values > 10.0, {"input_0": values}) == []
    wrong = np.random.default_rng(1).random((30, 40)) < 0.2
    other = np.random.default_rng(2).random((30, 40))
    assert describe_values("out", wrong, {"input_0": other, "input_1": other[0, :7]}) == []
    assert describe_values("out", np.zeros((30, 40), np.bool_), {"input_0": other}) == []

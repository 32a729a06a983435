"""Finding what is at fault among many, in halves."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapml.offload.culprits import minimal_culprits, most_checks


class Checker:
    """Fails where a group of faults is whole among what is placed; counts how often it is asked."""

    def __init__(self, *faults: set[int]) -> None:
        self.faults = faults
        self.asked: list[tuple[int, ...]] = []

    def __call__(self, placed: Sequence[int]) -> bool:
        self.asked.append(tuple(placed))
        return not any(fault <= set(placed) for fault in self.faults)


@pytest.mark.parametrize("culprit", [0, 1, 31, 46])
def test_one_of_many_is_found_in_halves(culprit: int) -> None:
    checker = Checker({culprit})
    assert minimal_culprits(range(47), checker) == (culprit,)
    assert len(checker.asked) <= ceil(log2(47)) + 1


def test_two_that_are_wrong_only_together_are_found_together() -> None:
    checker = Checker({3, 40})
    assert minimal_culprits(range(47), checker) == (3, 40)
    assert len(checker.asked) <= 2 * most_checks(47)


def test_the_only_suspect_is_not_asked_again() -> None:
    checker = Checker({0})
    assert minimal_culprits([0], checker) == (0,)
    assert checker.asked == []


def test_groups_are_asked_in_the_suspects_own_order() -> None:
    checker = Checker({1, 5, 6})
    suspects = [6, 0, 5, 2, 1, 3]
    assert minimal_culprits(suspects, checker) == (6, 5, 1)
    for asked in checker.asked:
        assert sorted(asked, key=suspects.index) == list(asked)


@given(
    st.integers(1, 60).flatmap(
        lambda count: st.tuples(
            st.just(count),
            st.lists(st.sets(st.integers(0, count - 1), min_size=1, max_size=4), min_size=1),
        )
    )
)
def test_what_is_found_fails_and_no_part_of_it_does(case: tuple[int, list[set[int]]]) -> None:
    count, faults = case
    checker = Checker(*faults)
    found = minimal_culprits(range(count), checker)
    asked = len(checker.asked)
    assert set(found) in faults
    assert not checker(found)
    assert all(checker([each for each in found if each != left]) for left in found)
    assert asked <= len(found) * most_checks(count)


@given(st.lists(st.booleans(), min_size=200, max_size=200), st.integers(1, 40))
def test_an_erratic_check_still_ends_with_a_group_that_was_seen_to_fail(
    answers: list[bool], count: int
) -> None:
    remaining = iter(answers)
    said: dict[tuple[int, ...], bool] = {tuple(range(count)): False}

    def passes(placed: Sequence[int]) -> bool:
        return said.setdefault(tuple(placed), next(remaining, False))

    found = minimal_culprits(range(count), passes)
    assert found
    assert said[tuple(found)] is False

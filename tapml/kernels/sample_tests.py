"""Chooses carved tests for a quick trial: every shape first, then spread over layers and steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from tapml.suite.carved_test import CarvedTest

Work: TypeAlias = "tuple[str, tuple[tuple[int, ...], ...], tuple[tuple[str, int], ...]]"

QUICK: Final = 16
"""Default number of tests of a quick trial."""


def choose(tests: Sequence[CarvedTest], count: int) -> list[CarvedTest]:
    """At most `count` of an operator's tests, evenly over shapes and entries.

    The first test stays first, because probes are derived from it; small tests come before large.
    """
    if count >= len(tests):
        return list(tests)
    groups: dict[Work, list[CarvedTest]] = {}
    for test in tests:
        groups.setdefault(work_of(test), []).append(test)
    first, *others = groups.values()
    ordered = [first, *sorted(others, key=lambda group: _nbytes(group[0]))]
    shares = [0] * len(ordered)
    while sum(shares) < count:
        for index, group in enumerate(ordered):
            if shares[index] < len(group) and sum(shares) < count:
                shares[index] += 1
    chosen = []
    for group, share in zip(ordered, shares, strict=True):
        last = max(share - 1, 1)
        chosen += [group[index * (len(group) - 1) // last] for index in range(share)]
    return chosen


def work_of(test: CarvedTest) -> Work:
    """Key that tests with the same amount of work share."""
    shapes = tuple(tensor.shape for tensor in (*test.inputs, *test.outputs))
    return (test.entry, shapes, tuple(sorted(test.symbols.items())))


def _nbytes(test: CarvedTest) -> int:
    return sum(tensor.nbytes for tensor in (*test.inputs, *test.outputs))

"""Bisection for the faulty ones among many operators that were placed at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, log2
from typing import TypeVar

Thing = TypeVar("Thing")


def minimal_culprits(
    suspects: Sequence[Thing], passes: Callable[[Sequence[Thing]], bool]
) -> tuple[Thing, ...]:
    """Find a minimal group of suspects that fails by itself.

    The last member of the shortest failing prefix of `suspects` is a culprit. The search keeps it
    and repeats with the shortest prefix that fails together with the kept ones, until those fail
    alone. So it also finds several suspects that fail only together.

    Parameters
    ----------
    suspects
        Suspects in the order of suspicion; all together are known to fail.
    passes
        Whether a subset, in the order of `suspects`, passes. Called at most :func:`most_checks`
        times for each culprit.

    Returns
    -------
    tuple
        A group that fails. It passes without any one of its members, provided that removing
        operators from a passing group never makes it fail.

    Examples
    --------
    >>> minimal_culprits("abcdefgh", lambda some: not {"c", "f"} <= set(some))
    ('c', 'f')
    """
    place = {id(suspect): position for position, suspect in enumerate(suspects)}
    found: list[Thing] = []
    failing = len(suspects)

    def prefix(length: int) -> list[Thing]:
        group = [*suspects[:length], *found]
        return sorted(group, key=lambda suspect: place[id(suspect)])

    while True:
        passing = 0
        while failing - passing > 1:
            middle = (passing + failing) // 2
            if passes(prefix(middle)):
                passing = middle
            else:
                failing = middle
        found.append(suspects[failing - 1])
        failing -= 1
        alone = prefix(0)
        if failing == 0 or not passes(alone):
            return tuple(alone)


def most_checks(suspects: int) -> int:
    """Maximum number of checks for each culprit among this many suspects."""
    return ceil(log2(suspects)) + 1 if suspects > 1 else 0

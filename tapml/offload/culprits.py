"""Which of many things placed at once are at fault, found in halves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, log2
from typing import TypeVar

Thing = TypeVar("Thing")


def minimal_culprits(
    suspects: Sequence[Thing], passes: Callable[[Sequence[Thing]], bool]
) -> tuple[Thing, ...]:
    """Find a smallest group of suspects that fails by itself.

    The shortest beginning of `suspects` that fails ends with one that is at fault. It is kept, and
    the shortest beginning that fails together with it ends with the next, until what is kept fails
    alone. A single culprit and several that are wrong only together are found the same way.

    Parameters
    ----------
    suspects
        In the order in which they are to be suspected; all together they are known to fail.
    passes
        Whether some of them, in the order of `suspects`, pass. Asked at most
        :func:`most_checks` times for each culprit found; what it said is never assumed.

    Returns
    -------
    tuple
        Fails by itself. Where leaving something out never makes a group fail that passed, it would
        pass without any one of its members.
    """
    place = {id(suspect): position for position, suspect in enumerate(suspects)}
    found: list[Thing] = []
    failing = len(suspects)

    def beginning(length: int) -> list[Thing]:
        group = [*suspects[:length], *found]
        return sorted(group, key=lambda suspect: place[id(suspect)])

    while True:
        passing = 0
        while failing - passing > 1:
            middle = (passing + failing) // 2
            if passes(beginning(middle)):
                passing = middle
            else:
                failing = middle
        found.append(suspects[failing - 1])
        failing -= 1
        alone = beginning(0)
        if failing == 0 or not passes(alone):
            return tuple(alone)


def most_checks(suspects: int) -> int:
    """How often at most the search asks for each culprit it finds among so many suspects."""
    return ceil(log2(suspects)) + 1 if suspects > 1 else 0

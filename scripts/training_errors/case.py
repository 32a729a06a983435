"""A training error that was re-created, with its clean twin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

RIGHT_SEEDS: Final = (1, 2)
TWIN_SEED: Final = 3


@dataclass(frozen=True)
class Case:
    """An error of the paper.

    Attributes
    ----------
    id
        Its name in tables 3 and 5.
    says
        What goes wrong.
    run
        ``run(seed, buggy)`` trains; in a job of several ranks, in each of them.
    relation
        The relation that names the cause.
    trigger
        The step in which the error first acts.
    ranks
        Processes of the job.
    aborts
        Whether the buggy job ends with an error of its own.
    """

    id: str
    says: str
    run: Callable[[int, bool], None]
    relation: str
    trigger: int = 0
    ranks: int = 1
    aborts: bool = False


CASES: dict[str, Case] = {}


def case(
    identity: str,
    says: str,
    relation: str,
    *,
    trigger: int = 0,
    ranks: int = 1,
    aborts: bool = False,
) -> Callable[[Callable[[int, bool], None]], Callable[[int, bool], None]]:
    """Register a function as a case."""

    def register(run: Callable[[int, bool], None]) -> Callable[[int, bool], None]:
        CASES[identity] = Case(identity, says, run, relation, trigger, ranks, aborts)
        return run

    return register

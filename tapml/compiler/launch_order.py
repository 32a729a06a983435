"""Launches that are independent of each other, brought together.

A launch conflicts with an earlier one if one of the two writes memory that the other touches. The
order found keeps every two that conflict as they were, so that each launch reads what it read
before; which of those that do not conflict share a group is the caller's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

WINDOW: Final = 32
"""Groups that a launch may pass. What it writes lives longer by as many, so this bounds memory."""


@dataclass(frozen=True)
class Access:
    """The memories that one launch reads and writes, whole, by name."""

    reads: frozenset[str]
    writes: frozenset[str]

    def conflicts(self, other: Access) -> bool:
        """Whether the order of the two matters."""
        return bool(
            self.writes & other.writes or self.writes & other.reads or self.reads & other.writes
        )


@dataclass
class _Group:
    members: list[int]
    # Whether a launch that was placed later must come later.
    awaited: bool = False
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)

    def add(self, index: int, access: Access) -> None:
        """Take a launch in."""
        self.members.append(index)
        self.reads |= access.reads
        self.writes |= access.writes

    def conflicts(self, access: Access) -> bool:
        """Whether the order of a launch and some member matters."""
        return not (
            self.writes.isdisjoint(access.writes)
            and self.writes.isdisjoint(access.reads)
            and self.reads.isdisjoint(access.writes)
        )


def grouped(
    accesses: Sequence[Access],
    fits: Callable[[Sequence[int], int], bool],
    window: int = WINDOW,
) -> tuple[tuple[int, ...], ...]:
    """The launches in a new order, those that go together in one group.

    A launch joins the earliest group behind everything it waits for; else the latest one that
    nobody has waited for yet, which comes later for it; else it stays alone.

    Parameters
    ----------
    accesses
        Per launch, in their order, what it touches.
    fits
        Whether a launch may join these, all independent of it and of each other.
    window
        Groups a launch may pass at most, up or down.

    Returns
    -------
    tuple of tuple of int
        Every index once. Members of a group are independent of each other.
    """
    order: list[_Group] = []
    for index, access in enumerate(accesses):
        held = [group.conflicts(access) for group in order]
        behind = max((at for at, holds in enumerate(held) if holds), default=-1) + 1
        nearest = max(0, len(order) - window)
        joined = next(
            (g for g in order[max(behind, nearest) :] if fits(g.members, index)),
            None,
        )
        if joined is None:
            for at in range(behind - 1, nearest - 1, -1):
                group = order[at]
                if not held[at] and not group.awaited and fits(group.members, index):
                    joined = group
                    order.append(order.pop(at))
                    held.append(held.pop(at))
                    break
        if joined is None:
            joined = _Group([])
            order.append(joined)
            held.append(False)
        joined.add(index, access)
        for group, holds in zip(order, held, strict=True):
            group.awaited = group.awaited or holds
    return tuple(tuple(group.members) for group in order)

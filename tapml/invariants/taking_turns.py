"""Optimizers of a run: which is which, and which share a step."""

from __future__ import annotations

from itertools import count
from weakref import WeakKeyDictionary, WeakSet

import torch


class TakingTurns:
    """Knows optimizers by the order of their first steps; holds them weakly.

    One that is made anew, as for another fold, takes the place of one that is gone.
    """

    def __init__(self) -> None:
        self._places: WeakKeyDictionary[torch.optim.Optimizer, int] = WeakKeyDictionary()
        self._turns: WeakSet[torch.optim.Optimizer] = WeakSet()

    def __contains__(self, optimizer: object) -> bool:
        return optimizer in self._places

    def __len__(self) -> int:
        return len(self._places)

    def place(self, optimizer: torch.optim.Optimizer) -> int:
        """The place of one that steps."""
        found = self._places.get(optimizer)
        if found is None:
            taken = set(self._places.values())
            found = next(place for place in count() if place not in taken)
            self._places[optimizer] = found
        return found

    def begins(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether one that has stepped begins a step of the run.

        Several take turns in one; one that comes again begins another.
        """
        if not self._turns or optimizer in self._turns:
            self._turns.clear()
            self._turns.add(optimizer)
            return True
        self._turns.add(optimizer)
        return False

"""Losses of evaluations, and which weights had the lowest."""

from __future__ import annotations

from collections.abc import Mapping

from tapml.invariants.record import BEST, OVER, SCORE, Value


class Scores:
    """Remembers the weights of the best evaluation and of the last one, by their digests."""

    def __init__(self) -> None:
        self._weights: Mapping[str, str] = {}
        self._values: list[float] = []
        self._best: tuple[float, Mapping[str, str]] | None = None
        self._loss = ""

    def add(self, loss: str, value: float, weights: Mapping[str, str]) -> None:
        """A loss of an evaluation; `weights` is an object of its own for each training step."""
        if weights is not self._weights:
            self._close()
            self._weights = weights
        self._loss = loss
        self._values.append(value)

    def saved(self, weights: Mapping[str, str]) -> dict[str, Value]:
        """The fields of a checkpoint with these weights: none without an evaluation before."""
        self._close()
        if self._best is None:
            return {}
        best, last = self._best[1], self._weights
        return {SCORE: self._loss, BEST: _same(weights, best), OVER: not _same(best, last)}

    def _close(self) -> None:
        values, self._values = self._values, []
        mean = sum(values) / len(values) if values else float("inf")
        if self._best is None or mean < self._best[0]:
            self._best = (mean, self._weights) if values else self._best


def _same(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    shared = one.keys() & other.keys()
    return bool(shared) and all(one[name] == other[name] for name in shared)

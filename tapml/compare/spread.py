"""How far the elements of an output have moved, over the movements of a test's inputs."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tapml.compare.formats import Float64s

_ROW_ELEMENTS: Final = 16
_ROW_SHARE: Final = 0.5
_MOST_RAISED: Final = 32.0
_SAMPLED: Final = 1 << 16


class Spread:
    """How far one output has moved from its exact values, over the movements so far.

    `lost` is how much a function that becomes flat may lose on the way: see :func:`smooth`.
    """

    def __init__(self, exact: NDArray[Any], *, lost: float = 0.0) -> None:
        self.exact = exact
        self._lost = lost
        self.count = 0
        self._squares = np.zeros(exact.shape)

    def add(self, moved: NDArray[Any]) -> None:
        """Count one more movement."""
        self.count += 1
        with np.errstate(all="ignore"):
            if self.exact.dtype == np.float64:
                change = np.asarray(moved - self.exact)
            else:
                change = np.asarray(moved.astype(np.float64) - self.exact.astype(np.float64))
            np.square(change, out=change)
            if not np.isfinite(change.sum()):
                change[~np.isfinite(change)] = 0.0
            if self.exact.dtype == np.float64:
                self._squares += change
            else:
                np.maximum(self._squares, change, out=self._squares)

    def sensitivity(self) -> Float64s:
        """Root mean square movement (largest, for integers), shape of the output."""
        if self.exact.dtype != np.float64:
            return np.sqrt(self._squares)
        return np.maximum(self.root_mean_square(), self.levels())

    def levels(self) -> Float64s:
        """What each element is raised to at least, for its row's sake."""
        return row_levels(self.root_mean_square(), lost=self._lost)

    def root_mean_square(self) -> Float64s:
        """How far each element has moved, before its row is looked at."""
        return np.sqrt(self._squares / max(1, self.count))


def smooth(sensitivity: Float64s, *, lost: float = 0.0) -> Float64s:
    """Raise elements that hardly moved by accident to half of their row's root mean square.

    With a few movements one element in thousands nearly stands still. A row is the last axis,
    joined with those before it until it has 16 elements. What moves over thirty times less than its
    row is no accident, three movements in a row: it is raised to thirty times itself, so that the
    masked scores of an attention (-1e9) do not speak for those beside them.

    Where a function saturates (tanh, erf, exp) that is too little: in the far tail of a GELU
    1 + tanh is all rounding, of the size of one, and no movement of the input shows it. There an
    element is raised to `lost` all the same, but not to what an exponential of 60 moves by.
    """
    return np.maximum(sensitivity, row_levels(sensitivity, lost=lost))


def row_levels(sensitivity: Float64s, *, lost: float = 0.0) -> Float64s:
    """What :func:`smooth` raises each element to at least, shape of `sensitivity`."""
    if sensitivity.size == 0:
        return sensitivity
    elements = 1
    for extent in reversed(sensitivity.shape):
        elements *= extent
        if elements >= _ROW_ELEMENTS:
            break
    rows = sensitivity.reshape(-1, elements)
    with np.errstate(all="ignore"):
        level = np.sqrt(np.mean(np.square(rows), axis=1, keepdims=True)) * _ROW_SHARE
        level = np.where(np.isfinite(level), level, 0.0)
        if lost:
            # A whole row may lie in the tail: a dead channel of an image.
            some = rows.reshape(-1)[:: max(1, rows.size // _SAMPLED)]
            level = np.maximum(level, np.median(some) * _ROW_SHARE)
        level = np.minimum(level, np.maximum(_MOST_RAISED * rows, lost))
    return np.broadcast_to(level, rows.shape).reshape(sensitivity.shape)


def round_up(sensitivity: Float64s) -> NDArray[np.float32]:
    """`sensitivity` as float32 with 8 significant bits, rounded up: two bytes on disk."""
    with np.errstate(all="ignore"):
        narrow = np.minimum(sensitivity, 1e38).astype(np.float32)
    bits = narrow.view(np.uint32)
    return ((bits + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)).view(np.float32)

"""How far the outputs of two backends are apart, instance by instance.

The first two are CRADLE's (section III-B); they say what a difference means to a user. The
elementwise tier decides: the published metrics miss small faults, and a tie that rounding breaks
the other way looks to them like a fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tapml.backends.runner import Array

TOP_K: Final = 5
CLASS_BINS: Final = ("16", "15-8", "7-4", "3-2", "1", "0")
MAD_BINS: Final = ("0-0.2", "0.2-0.4", "0.4-0.6", "0.6-0.8", "0.8-1")
TOP_KS: Final = (1, 2, 3, 4, 5)
CLASS_STEPS: Final = tuple(map(float, range(1, 17)))
"""What T_C may be."""
MAD_STEPS: Final = tuple(round(0.05 * each, 2) for each in range(1, 21))
"""What T_M may be."""
RELATIVE_STEPS: Final = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
"""What the elementwise threshold may be."""
_FLOOR: Final = 1e-30
_ELEMENTS: Final = 1 << 20
"""Compared at once: logits of many tokens take gigabytes in float64."""

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def ranks(outputs: Array, labels: Array) -> Integers:
    """The rank of each label among the classes, from 1; classes of equal output share a rank.

    Parameters
    ----------
    outputs
        Confidences, shape (instances, classes).
    labels
        Classes, shape (instances,).
    """
    own = np.take_along_axis(outputs, labels.astype(np.int64)[:, None], axis=1)
    return np.asarray(1 + np.count_nonzero(outputs > own, axis=1), np.int64)


def class_distance(first: Array, second: Array, labels: Array, top_k: int = TOP_K) -> Floats:
    """D_CLASS, equations 1 and 2: |sigma - sigma'| with sigma = 2^(k - rank), 0 beyond rank k.

    Examples
    --------
    >>> first, second = np.array([[0.9, 0.1, 0.0]]), np.array([[0.1, 0.9, 0.0]])
    >>> class_distance(first, second, np.array([0]))
    array([8.])
    """
    return rank_distance(ranks(first, labels), ranks(second, labels), top_k)


def rank_distance(first: Integers, second: Integers, top_k: int = TOP_K) -> Floats:
    """D_CLASS of the labels' ranks, see :func:`class_distance`."""
    one, other = (
        np.where(each <= top_k, 2.0 ** (top_k - np.minimum(each, top_k)), 0.0)
        for each in (first, second)
    )
    return np.asarray(np.abs(one - other))


def mad_distance(first: Array, second: Array, truth: Array) -> Floats:
    """D_MAD, equations 3 and 4: |d - d'| / (d + d'), d the mean absolute distance to the truth.

    0 where both are exact, and where either is NaN: `relative_deviation` tells those apart.

    Examples
    --------
    >>> mad_distance(np.array([[0.4]]), np.array([[-0.1]]), np.array([[0.0]])).round(3)
    array([0.6])
    """
    one, other = (_mean_distance(each, truth) for each in (first, second))
    total = one + other
    with np.errstate(invalid="ignore"):
        found = np.abs(one - other) / np.where(total > 0, total, 1.0)
    return np.where(np.isnan(found), 0.0, found)


def _mean_distance(outputs: Array, truth: Array) -> Floats:
    gaps = np.abs(outputs.astype(np.float64) - truth)
    return np.asarray(gaps.reshape(len(gaps), -1).mean(axis=1))


def relative_deviation(first: Array, second: Array) -> Floats:
    """The largest |a - b| of each instance over its scale.

    The scale is the instance's largest magnitude, or the median of all instances' if that is
    larger: an output that happens to be near zero is measured as the others are. NaN and Inf in the
    same places are equal; elsewhere the deviation is infinite.

    Examples
    --------
    >>> relative_deviation(np.array([[1.0, np.nan]]), np.array([[0.5, np.nan]]))
    array([0.5])
    """
    gap, magnitude = np.zeros(len(first)), np.zeros(len(first))
    if not first.size:
        return gap
    step = max(1, _ELEMENTS * len(first) // first.size)
    for start in range(0, len(first), step):
        rows = slice(start, start + step)
        gap[rows], magnitude[rows] = _gaps(first[rows], second[rows])
    scale = np.maximum(np.maximum(magnitude, np.median(magnitude)), _FLOOR)
    return np.asarray(gap / scale)


def _gaps(first: Array, second: Array) -> tuple[Floats, Floats]:
    """The largest gap and the largest magnitude of each instance."""
    one, other = (np.asarray(each, np.float64).reshape(len(each), -1) for each in (first, second))
    finite = np.isfinite(one) & np.isfinite(other)
    same = finite | (one == other) | (np.isnan(one) & np.isnan(other))
    magnitude = np.where(finite, np.maximum(np.abs(one), np.abs(other)), 0.0).max(axis=1)
    with np.errstate(invalid="ignore"):
        gap = np.where(finite, np.abs(one - other), np.where(same, 0.0, np.inf)).max(axis=1)
    return gap, magnitude


def one_hot(labels: Array, classes: int) -> Floats:
    """Labels as the vectors that D_MAD compares with."""
    return np.asarray(np.eye(classes)[labels.astype(np.int64)])


def accuracy(ranks_of_labels: Integers, top_k: int) -> float:
    """The share of instances whose label is among the first `top_k`: the paper's baseline."""
    return float(np.mean(ranks_of_labels <= top_k))


def counts_above(distances: Floats, steps: Sequence[float]) -> list[int]:
    """The number of instances at or above each step.

    Examples
    --------
    >>> counts_above(np.array([0.0, 8.0, 16.0]), [1.0, 8.0, 16.0])
    [2, 2, 1]
    """
    return [int(np.count_nonzero(distances >= each)) for each in steps]


def class_pattern(distances: Floats) -> dict[str, int]:
    """The number of instances by bin of D_CLASS (table I)."""
    edges = np.array([0.5, 1.5, 3.5, 7.5, 15.5])
    found = np.bincount(np.digitize(distances, edges), minlength=6)[::-1]
    return dict(zip(CLASS_BINS, map(int, found), strict=True))


def mad_pattern(distances: Floats) -> dict[str, int]:
    """The number of instances in five bins of D_MAD."""
    found = np.bincount(np.minimum((distances * 5).astype(int), 4), minlength=5)
    return dict(zip(MAD_BINS, map(int, found), strict=True))

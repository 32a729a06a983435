"""The tensor that an index output points into."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tapml_targets.dtype import dtype as lookup
from tapml_targets.float_formats import Float64s, as_float64
from tapml_targets.library import Parameter


@dataclass(frozen=True)
class IndexSource:
    """The values that an index output points into, along `axis`.

    `drops_axis` says that the output lacks the axis (argmax without keepdims); `position` is that
    of the tensor among those the operator reads.
    """

    values: Float64s
    axis: int
    drops_axis: bool
    position: int = 0

    def gather(self, indices: NDArray[Any]) -> Float64s:
        """Values at `indices`, one per element of the output."""
        if self.drops_axis:
            picked = np.take_along_axis(self.values, np.expand_dims(indices, self.axis), self.axis)
            return picked.squeeze(self.axis)
        return np.take_along_axis(self.values, indices, self.axis)


def locate_source(
    place: Sequence[Any] | None,
    parameters: Sequence[Parameter],
    inputs: Sequence[NDArray[Any]],
    shape: tuple[int, ...],
) -> IndexSource | None:
    """The source that was at `place` (axis, drops_axis, position) when an expectation was stored.

    A place without a position, as in older files, means the first tensor that fits.

    Parameters
    ----------
    parameters, inputs
        What the operator reads, and the raw inputs.
    shape
        Of the index output.
    """
    if place is None:
        return None
    axis, drops = int(place[0]), bool(place[1])
    for position, (parameter, raw) in enumerate(zip(parameters, inputs, strict=True)):
        if not lookup(parameter.dtype).is_float or raw.ndim <= axis:
            continue
        if position != (place[2] if len(place) > 2 else position):
            continue
        rest = raw.shape[:axis] + raw.shape[axis + 1 :]
        if rest == (shape if drops else shape[:axis] + shape[axis + 1 :]):
            return IndexSource(as_float64(raw, parameter.dtype), axis, drops, position)
    return None


def find_source(indices: NDArray[Any], inputs: Sequence[NDArray[Any]]) -> IndexSource | None:
    """The float64 input that `indices` point into, or None if unknown.

    An input qualifies if it has the output's shape except for one axis, and the values at `indices`
    are the axis's extremes in order: argmax, argmin, argsort and top-k. Of several, the one with
    the fewest ties is taken: in a tensor of zeros any index points at the largest.
    """
    candidates = list(_candidates(indices, inputs))
    return min(candidates, key=_ties, default=None)


def _ties(source: IndexSource) -> int:
    values = source.values
    extremes = (values.max(source.axis, keepdims=True), values.min(source.axis, keepdims=True))
    return sum(int((values == extreme).sum()) for extreme in extremes)


def _candidates(indices: NDArray[Any], inputs: Sequence[NDArray[Any]]) -> Iterator[IndexSource]:
    for position, values in enumerate(inputs):
        if values.dtype != np.float64 or values.ndim == 0:
            continue
        for axis in range(values.ndim):
            for drops in (True, False):
                shape = values.shape[:axis] + values.shape[axis + 1 :]
                if not drops:
                    if indices.ndim != values.ndim:
                        continue
                    shape = (*values.shape[:axis], indices.shape[axis], *values.shape[axis + 1 :])
                if indices.shape != shape or indices.shape[-1:] == (0,):
                    continue
                source = IndexSource(values, axis, drops, position)
                if _points_at_extremes(indices, source):
                    yield source


def _points_at_extremes(indices: NDArray[Any], source: IndexSource) -> bool:
    extent = source.values.shape[source.axis]
    if indices.size == 0 or (indices < 0).any() or (indices >= extent).any():
        return False
    found = source.gather(indices.astype(np.int64))
    if source.drops_axis:
        found = np.expand_dims(found, source.axis)
    if found.shape[source.axis] > extent:
        return False
    ordered = np.sort(source.values, axis=source.axis)
    count = found.shape[source.axis]
    lowest = np.take(ordered, range(count), source.axis)
    highest = np.take(np.flip(ordered, source.axis), range(count), source.axis)
    return bool(np.array_equal(found, lowest) or np.array_equal(found, highest))

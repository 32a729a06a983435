"""Cuts smaller inputs out of larger ones: windows along the reduced axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tapml.plan.graph_plan import Operator
from tapml.replaying.results import ReplayResult
from tapml_targets.dtype import dtype as lookup
from tapml_targets.expression import Expression, evaluate

Array = NDArray[Any]
Shape = tuple[int, ...]


def shapes_of(
    parameters: Sequence[Sequence[Expression]], symbols: Mapping[str, int]
) -> list[Shape]:
    """Declared shapes with the values of their symbols."""
    return [tuple(evaluate(extent, symbols) for extent in shape) for shape in parameters]


def window_starts(
    result: ReplayResult, output_axes: Sequence[tuple[int, int]], old: int, new: int
) -> Iterator[int]:
    """Possible starts of a window of `new` out of `old` elements, the most promising first.

    Parameters
    ----------
    result
        A failing replay: a window should contain the element with the largest error.
    output_axes
        (output, axis) pairs that are reduced together.
    """
    starts = [0, old - new]
    for output, axis in output_axes:
        if output < len(result.verdict.outputs):
            index = result.verdict.outputs[output].index
            if axis < len(index):
                starts += [min(index[axis], old - new), max(0, index[axis] - new + 1)]
    yield from dict.fromkeys(starts)


def sliced(
    operator: Operator,
    inputs: Sequence[Array],
    shapes: Sequence[Shape],
    windows: Mapping[tuple[int, int], int],
    bounds: Sequence[tuple[int, int]],
) -> tuple[Array, ...] | None:
    """The inputs cut to `shapes`; None if one would have to grow.

    Parameters
    ----------
    inputs, shapes
        Raw inputs and the new shape of each.
    windows
        Start of the window by (input, axis); 0 if missing.
    bounds
        Pairs (old, new) of reduced extents. An integer input whose values are all below `old` may
        be an index along that axis, so its values are kept below `new`.
    """
    smaller = []
    for position, (parameter, array, shape) in enumerate(
        zip(operator.read, inputs, shapes, strict=True)
    ):
        if len(shape) != array.ndim or any(
            not 0 < new <= old for new, old in zip(shape, array.shape, strict=True)
        ):
            return None
        cut = tuple(
            slice(start, start + extent)
            for axis, extent in enumerate(shape)
            for start in (windows.get((position, axis), 0),)
        )
        window = np.asarray(array[cut], order="C")  # keeps a scalar without an axis
        if window.shape != shape:
            return None
        smaller.append(_within(window, parameter.dtype, bounds))
    return tuple(smaller)


def _within(array: Array, dtype: str, bounds: Sequence[tuple[int, int]]) -> Array:
    is_index = array.dtype.kind in "iu" and not lookup(dtype).is_float
    if not is_index or lookup(dtype).packing != 1 or not array.size:
        return array
    largest = int(array.max())
    pointed = [(old, new) for old, new in bounds if largest < old]
    if not pointed:
        return array
    _, new = min(pointed)
    return np.minimum(array, array.dtype.type(new - 1)) if largest >= new else array

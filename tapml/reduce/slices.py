"""Smaller inputs out of larger ones: windows along the axes that shrink."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tapml.carving.replay_results import ReplayResult
from tapml.graph.plan import Operator
from tapml_targets.dtype import dtype as lookup
from tapml_targets.expression import Expression, evaluate

Array = NDArray[Any]
Shape = tuple[int, ...]


def shapes_of(
    parameters: Sequence[Sequence[Expression]], symbols: Mapping[str, int]
) -> list[Shape]:
    """Declared shapes with their symbols' values put in."""
    return [tuple(evaluate(extent, symbols) for extent in shape) for shape in parameters]


def window_starts(
    result: ReplayResult, output_axes: Sequence[tuple[int, int]], old: int, new: int
) -> Iterator[int]:
    """Where a window of `new` out of `old` elements may begin, the likeliest first.

    Parameters
    ----------
    result
        A failing replay: a window should hold the element that is furthest off.
    output_axes
        (output, axis) pairs that shrink alike.
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
    """The inputs cut to `shapes`; None where one would have to grow.

    Parameters
    ----------
    operator
        Whose inputs they are.
    inputs, shapes
        Raw inputs and the shape each should have.
    windows
        Where the window begins by (input, axis); 0 elsewhere.
    bounds
        Pairs (old, new) of extents that shrink. An integer input whose values all lie below `old`
        may point along that axis, so that its values are kept below `new`.
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
        window = np.ascontiguousarray(array[cut])
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

"""Instances, and calls that take a few of them, as where a model fixes their number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from tapml.backends.runner import Array, Input
from tapml_targets.errors import UnsupportedOperatorError

WINDOW_BYTES: Final = 64 << 20
"""Of inputs that are run at once: what a model makes of them may be a hundred times as large."""

_PLAIN: Final = {"bfloat16": "float32"}


def step_of(inputs: Sequence[Input]) -> int | None:
    """Instances of one call, where the model fixes them."""
    return next((each.shape[0] for each in inputs if each.shape), None)


def dtype_of(expected: Input) -> np.dtype[Any]:
    """What NumPy holds an input as: it has no bfloat16, the backend converts."""
    return np.dtype(_PLAIN.get(expected.dtype, expected.dtype))


def typed(arrays: Mapping[str, Array], inputs: Sequence[Input]) -> dict[str, Array]:
    """Arrays as a model reads them: of its dtypes, and in C's order. What is so is not copied.

    Examples
    --------
    >>> typed({"x": np.arange(2), "y": np.arange(2)}, [Input("x", (None,), "float32")])
    {'x': array([0., 1.], dtype=float32), 'y': array([0, 1])}
    """
    dtypes = {each.name: dtype_of(each) for each in inputs}
    return {
        name: np.asarray(each, dtypes.get(name, each.dtype), order="C")
        for name, each in arrays.items()
    }


def window_of(arrays: Mapping[str, Array], inputs: Sequence[Input]) -> int | None:
    """How many instances are run at once, where all of them would take too much memory.

    A multiple of as many as the model takes.

    Examples
    --------
    >>> images = np.broadcast_to(np.uint8(0), (500, 3, 224, 224))
    >>> window_of({"x": images}, [Input("x", (None, 3, 224, 224), "float32")])
    111
    """
    dtypes, step = {each.name: dtype_of(each) for each in inputs}, step_of(inputs)
    size = sum(each.size * dtypes.get(name, each.dtype).itemsize for name, each in arrays.items())
    if size <= WINDOW_BYTES:
        return None
    most = max(1, WINDOW_BYTES * instances(arrays) // size)
    return most if step is None else max(1, most // step) * step


def instances(inputs: Mapping[str, Array]) -> int:
    """How many there are; a single number is the same for all of them."""
    return next((len(each) for each in inputs.values() if each.ndim), 1)


def taken(inputs: Mapping[str, Array], places: Any) -> dict[str, Array]:
    """Some of the instances; what is a single number is the same for all.

    Examples
    --------
    >>> taken({"x": np.arange(5), "rate": np.array(16_000)}, slice(2))
    {'x': array([0, 1]), 'rate': array(16000)}
    """
    return {name: each[places] if each.ndim else each for name, each in inputs.items()}


def filled(inputs: Mapping[str, Array], step: int | None) -> dict[str, Array]:
    """The instances of one call: the last repeated up to as many as the model takes."""
    count = instances(inputs)
    return taken(inputs, np.minimum(np.arange(max(step or 1, count)), count - 1))


def in_steps(
    run: Callable[[Mapping[str, Array]], Sequence[Array]],
    inputs: Mapping[str, Array],
    step: int | None,
) -> list[Array]:
    """Run `step` instances at a time, the last call filled up with its last instance.

    Examples
    --------
    >>> in_steps(lambda x: [x["x"] * 2, np.ones(3)], {"x": np.arange(5)}, 2)
    [array([0, 2, 4, 6, 8]), array([1., 1., 1.])]
    """
    count = instances(inputs)
    if step is None or step == count:
        return list(run(inputs))
    places = [
        np.minimum(np.arange(start, start + step), count - 1) for start in range(0, count, step)
    ]
    found = [list(run(taken(inputs, each))) for each in places]
    return [_joined(each, inputs, places) for each in zip(*found, strict=True)]


def _joined(calls: Sequence[Array], inputs: Mapping[str, Array], places: Sequence[Array]) -> Array:
    """An output of all calls: rows of each instance, a constant, or what rows each call makes.

    Parameters
    ----------
    calls
        The output of each call.
    inputs
        All instances.
    places
        The instances that each call took.
    """
    step, count = len(places[0]), instances(inputs)
    shapes = {each.shape for each in calls}
    if shapes == {()}:
        return np.array(calls)[:count]
    if len({each[1:] for each in shapes}) > 1:
        raise UnsupportedOperatorError(
            f"an output of {step} instances has the shapes {', '.join(map(str, sorted(shapes)))}: "
            "they cannot be run a few at a time"
        )
    rows, left = divmod(calls[0].shape[0], step)
    by_instance = len(shapes) == 1 and not left
    # One row of each instance is the usual. Several may as well be a constant, such as anchors,
    # which calls on the same values do not tell from them.
    if not (by_instance and (rows == 1 or _take_the_same(inputs, places))) and all(
        np.array_equal(each, calls[0], equal_nan=each.dtype.kind == "f") for each in calls
    ):
        return calls[0]
    return np.concatenate(calls)[: rows * count if by_instance else None]


def _take_the_same(inputs: Mapping[str, Array], places: Sequence[Array]) -> bool:
    """Whether all calls take the same values."""
    return all(
        np.array_equal(each[some], each[places[0]])
        for each in inputs.values()
        if each.ndim
        for some in places
    )

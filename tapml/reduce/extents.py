"""Reduces dynamic extents: the same kernel, called with smaller shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from tapml.reduce.search import Search
from tapml.reduce.slices import shapes_of, sliced, window_starts
from tapml.reduce.trials import Candidate, bound_symbols
from tapml_targets.errors import InputError

_LINEAR: Final = 32
"""Up to this value every extent is tried, from 1; beyond it they are doubled."""


def shrink_symbols(search: Search) -> None:
    """Give every shape symbol the smallest value that preserves the failure.

    For a symbol up to 33 every value is tried. A larger one uses doubling and bisection, which
    finds the smallest value if all larger ones fail as well.
    """
    progress = True
    while progress:
        progress = False
        operator, best = search.trials.operator, search.best
        for symbol, value in bound_symbols(operator, best.inputs, best.symbols).items():
            progress |= smallest(value, partial(_attempt, search, symbol))


def smallest(current: int, fails: Callable[[int], bool], *, linear: int = _LINEAR) -> bool:
    """Try values below `current` until one fails; bisect if values were skipped.

    Parameters
    ----------
    current
        Known to fail.
    fails
        Whether a value fails.
    linear
        Up to this value every value is tried, from 1; then they double.

    Returns
    -------
    bool
        Whether a value below `current` fails; the last one for which `fails` was true is the
        result.
    """
    passed = 0
    for value in _ladder(current, linear):
        if fails(value):
            failing = value
            while failing - passed > 1:
                middle = (passed + failing) // 2
                if fails(middle):
                    failing = middle
                else:
                    passed = middle
            return True
        passed = value
    return False


def _ladder(current: int, linear: int) -> Iterator[int]:
    yield from range(1, min(current, linear + 1))
    value = 2 * linear
    while value < current:
        yield value
        value *= 2


def _attempt(search: Search, symbol: str, value: int) -> bool:
    doing = f"{symbol} = {value}"
    return any(search.attempt(candidate, doing) for candidate in _candidates(search, symbol, value))


def _candidates(search: Search, symbol: str, value: int) -> Iterator[Candidate]:
    """The best candidate with one symbol reduced, from several windows of its inputs."""
    operator, best = search.trials.operator, search.best
    symbols = bound_symbols(operator, best.inputs, best.symbols)
    smaller = symbols | {symbol: value}
    everything = [parameter.shape for parameter in operator.parameters]
    try:
        shapes = shapes_of([parameter.shape for parameter in operator.read], smaller)
        bounds = {
            (old, new)
            for before, after in zip(
                shapes_of(everything, symbols), shapes_of(everything, smaller), strict=True
            )
            for old, new in zip(before, after, strict=True)
            if new < old
        }
    except InputError:
        return
    axes = [
        (position, axis)
        for position, parameter in enumerate(operator.read)
        for axis, extent in enumerate(parameter.shape)
        if extent == symbol
    ]
    outputs = [
        (position, axis)
        for position, parameter in enumerate(operator.written)
        for axis, extent in enumerate(parameter.shape)
        if extent == symbol
    ]
    passed = {name: smaller[name] for name in best.symbols}
    for start in window_starts(search.result, outputs, symbols[symbol], value):
        windows = dict.fromkeys(axes, start)
        inputs = sliced(operator, best.inputs, shapes, windows, sorted(bounds))
        if inputs is not None:
            yield Candidate(inputs, passed)

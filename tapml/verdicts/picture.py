"""The errors of one test as a histogram by decade and a map of their positions.

Plain JSON data, small enough to store in a journal with every verdict. A cell of the map is one
character, which resolves decades; a number per cell would take three times the space.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from tapml.verdicts.discrete import wrong_elements
from tapml.verdicts.expectation import Expectation, ExpectedOutput, float_errors
from tapml.verdicts.judge import accept_flushed
from tapml.verdicts.verdict import OutputNumbers, Verdict, severity
from tapml_targets.float_formats import Float64s, as_float64

MAX_CELLS: Final = 48
"""Rows and columns of a map."""
LEVELS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
"""Characters of cells with an error, from the smallest to the largest."""
FIRST_LEVEL: Final = 1e-5
LEVELS_PER_DECADE: Final = 4
NO_ERROR: Final = "."
NOT_FINITE: Final = "!"
_DECADES: Final = (-8, 12)


class Replayed(Protocol):
    """What a picture is made from: :class:`tapml.replaying.results.ReplayResult`."""

    @property
    def test(self) -> str:
        """The test's id."""

    @property
    def verdict(self) -> Verdict:
        """Numbers per output."""

    @property
    def actual(self) -> tuple[NDArray[Any], ...]:
        """The target's outputs, raw bits; empty if nothing ran or they were not kept."""


def picture(result: Replayed, expectation: Expectation) -> dict[str, Any]:
    """Draw the gravest output of a test.

    Parameters
    ----------
    result
        An operator's worst test, with the target's outputs.
    expectation
        The expected outputs.

    Returns
    -------
    dict
        Strict JSON data of a few kilobytes; empty if there are no outputs to draw.

        ``test``, ``output``, ``dtype``, ``kind``, ``shape``
            Which output of which test.
        ``limits``
            The ratios above which it is degraded and above which it fails; none for integers.
        ``histogram``
            ``decades``: [e, elements whose ratio is from 10**e to 10**(e + 1), how many of them are
            above the limit], without the empty ones, the outermost open to their side; ``zero``,
            ``not_finite`` and ``over`` (of all elements, above the limit), which hold integers
            that are wrong as well.
        ``map``
            ``axes``: the two axes of the output that rows and columns go along, the largest ratio
            over all other axes in each cell; none where the output has one axis of more than one
            element and is drawn as lines of text are. ``extent``: the elements that rows and
            columns stand for. ``rows``: a character per cell, ``.`` no error, ``!`` not finite,
            else the level in ``levels``: level n starts at ``first`` * 10 ** (n / ``per_decade``).
    """
    if not result.actual or not result.verdict.outputs:
        return {}
    drawn = zip(result.verdict.outputs, expectation.outputs, result.actual, strict=True)
    numbers, want, raw = max(drawn, key=lambda each: _gravity(each[0]))
    if not raw.size:
        return {}
    ratios, over = _ratios(numbers, want, raw)
    limits = {"degraded": numbers.passing, "fail": numbers.degraded} if want.is_float else {}
    return {
        "test": result.test,
        "output": want.name,
        "dtype": want.dtype,
        "kind": want.kind,
        "shape": list(raw.shape),
        "limits": limits,
        "histogram": _histogram(ratios, over),
        "map": _map(ratios),
    }


def _gravity(numbers: OutputNumbers) -> tuple[int, float]:
    ratio = numbers.ratio / numbers.passing if numbers.passing else numbers.ratio
    return severity(numbers.status), math.inf if math.isnan(ratio) else ratio


def _ratios(
    numbers: OutputNumbers, want: ExpectedOutput, raw: NDArray[Any]
) -> tuple[Float64s, NDArray[np.bool_]]:
    """Each element's ratio (Inf if it has none), and which are above the limit."""
    if not want.is_float:
        wrong = wrong_elements(want, raw)
        return np.where(wrong, np.inf, 0.0), wrong
    got = as_float64(raw, want.dtype)
    ratios = np.nan_to_num(float_errors(want, got), copy=False, nan=np.inf, posinf=np.inf)
    if numbers.flushed:
        accept_flushed(ratios, want, got, numbers.passing)
    return ratios, ratios > numbers.passing


def _histogram(ratios: Float64s, over: NDArray[np.bool_]) -> dict[str, Any]:
    known = (ratios > 0) & np.isfinite(ratios)
    lowest, highest = _DECADES
    decades = np.clip(np.floor(np.log10(ratios[known])), lowest, highest).astype(np.int64) - lowest
    counts = np.bincount(decades, minlength=highest - lowest + 1)
    beyond = np.bincount(decades[over[known]], minlength=highest - lowest + 1)
    return {
        "zero": int((ratios == 0).sum()),
        "decades": [
            [position + lowest, int(count), int(beyond[position])]
            for position, count in enumerate(counts)
            if count
        ],
        "not_finite": int(np.isinf(ratios).sum()),
        "over": int(over.sum()),
    }


def _map(ratios: Float64s) -> dict[str, Any]:
    wide = [axis for axis, extent in enumerate(ratios.shape) if extent > 1]
    axes = wide[-2:] if len(wide) > 1 else []
    if axes:
        others = tuple(axis for axis in range(ratios.ndim) if axis not in axes)
        plane = ratios.max(axis=others)
        extent = list(plane.shape)
        cells = _largest(_largest(plane, 0), 1)
    else:
        flat = _largest(ratios.reshape(1, -1), 1, MAX_CELLS * MAX_CELLS)[0]
        width = min(MAX_CELLS, len(flat))
        cells = np.resize(flat, (-(-len(flat) // width), width))
        extent = [1, ratios.size]
        rest = cells.size - len(flat)
        lines = _lines(cells)
        lines[-1] = lines[-1][: width - rest]
        return _drawn(axes, extent, lines)
    return _drawn(axes, extent, _lines(cells))


def _drawn(axes: Sequence[int], extent: Sequence[int], lines: list[str]) -> dict[str, Any]:
    return {
        "axes": list(axes),
        "extent": list(extent),
        "levels": LEVELS,
        "first": FIRST_LEVEL,
        "per_decade": LEVELS_PER_DECADE,
        "rows": lines,
    }


def _largest(values: Float64s, axis: int, cells: int = MAX_CELLS) -> Float64s:
    """Maximum over each of at most `cells` equal segments of an axis."""
    extent = values.shape[axis]
    if extent <= cells:
        return values
    starts = np.arange(cells) * extent // cells
    return np.asarray(np.maximum.reduceat(values, starts, axis=axis))


def _lines(cells: Float64s) -> list[str]:
    with np.errstate(divide="ignore"):
        levels = np.floor(np.log10(cells / FIRST_LEVEL) * LEVELS_PER_DECADE)
    levels = np.clip(levels, 0, len(LEVELS) - 1)
    return [
        "".join(_character(float(ratio), int(level)) for ratio, level in zip(*row, strict=True))
        for row in zip(cells, levels, strict=True)
    ]


def _character(ratio: float, level: int) -> str:
    if ratio == 0:
        return NO_ERROR
    return LEVELS[level] if math.isfinite(ratio) else NOT_FINITE

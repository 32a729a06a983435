"""Describes the positions of wrong elements: rows, a tail, a stride, a block, or scattered.

A pattern is a set of elements with a sentence. It is reported if it covers almost all wrong
elements and almost no right ones; the simplest comes first.

Positions do not explain a table that is read as unsigned, or a function that fails beyond a bound,
but the input's values do. So wrong elements are also described by the values they depend on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]

EXPLAINED: Final = 0.99
_DENSE: Final = 0.75
_BLOCKS: Final = tuple(2**power for power in range(1, 11))
_LONGEST_PERIOD: Final = 64
# Longer ones are not searched for periods, because each candidate reads all of it.
_LONGEST_FOR_PERIODS: Final = 1 << 20
_RUNS: Final = 6
_MOST: Final = 2
# The cost of indices that are listed individually.
_LISTED: Final = 4.0


@dataclass(frozen=True)
class Pattern:
    """A described set of elements.

    Attributes
    ----------
    sentence
        The description.
    cost
        Complexity: simpler patterns explain more.
    explained
        Share of the wrong elements that it covers.
    dense
        Share of its elements that are wrong.
    """

    sentence: str
    cost: float
    explained: float
    dense: float


def patterns_of(wrong: Mask) -> list[Pattern]:
    """Patterns that cover at least ``EXPLAINED`` of the wrong elements, the simplest first.

    Empty if nothing is wrong. The fallback is *scattered*, with the share.

    Parameters
    ----------
    wrong
        Mask of the wrong elements, shape of the output.
    """
    count = int(wrong.sum())
    if not count:
        return []
    if count == wrong.size:
        return [Pattern(f"all {count} elements are wrong", 0.0, 1.0, 1.0)]
    found = [p for p in _candidates(wrong) if p.explained >= EXPLAINED and p.dense >= _DENSE]
    if not found:
        share = count / wrong.size
        words = f"{count} of {wrong.size} elements are wrong, scattered ({100 * share:.3g} %): "
        return [Pattern(words + _spread(wrong), 9.0, 1.0, share)]
    found.sort(key=lambda pattern: (pattern.dense < EXPLAINED, pattern.cost))
    best, others = found[0], found[1:]
    exact = [p for p in others if p.explained == 1.0 and p.dense >= EXPLAINED]
    return [best, *exact][: _MOST if count > 1 else 1]


def describe_places(name: str, wrong: Mask) -> list[str]:
    """Sentences about an output of this name, the simplest first."""
    return [f"{name}: {pattern.sentence}" for pattern in patterns_of(wrong)]


@dataclass(frozen=True)
class _Places:
    """A described set of indices along one axis or in memory order."""

    indices: NDArray[np.int64]
    words: str
    cost: float


def _candidates(wrong: Mask) -> Iterator[Pattern]:
    if wrong.sum() == 1:
        index = [int(i[0]) for i in np.nonzero(wrong)]
        last = " (the last)" if wrong.reshape(-1)[-1] else ""
        yield Pattern(f"only element {index}{last} of {list(wrong.shape)} is wrong", 0.5, 1.0, 1.0)
    yield from _of_axes(wrong)
    if wrong.ndim > 1:
        yield from _of_memory(wrong)
        yield from _of_diagonals(wrong)


def _of_axes(wrong: Mask) -> Iterator[Pattern]:
    """The elements at some indices of each axis: rows, columns, a tail, a block."""
    chosen = []
    for axis, extent in enumerate(wrong.shape):
        others = tuple(other for other in range(wrong.ndim) if other != axis)
        counts = wrong.sum(axis=others)
        # Ignore the weakest indices, which hold one in a hundred of the wrong elements.
        order = np.argsort(-counts, kind="stable")
        kept = np.searchsorted(np.cumsum(counts[order]), EXPLAINED * counts.sum()) + 1
        indices = np.flatnonzero(counts > 0)
        strong = np.sort(order[: int(kept)])
        chosen.append([_describe(i, extent, f"axis {axis}") for i in _distinct(indices, strong)])
    for kind in range(max(len(each) for each in chosen)):
        places = [each[min(kind, len(each) - 1)] for each in chosen]
        box = np.zeros(wrong.shape, np.bool_)
        box[np.ix_(*(each.indices for each in places))] = True
        words = [each.words for each in places if each.words]
        yield _pattern(wrong, box, _joined(words), sum(each.cost for each in places))


def _distinct(first: NDArray[Any], second: NDArray[Any]) -> list[NDArray[np.int64]]:
    same = first.size == second.size
    return [first.astype(np.int64)] if same else [first.astype(np.int64), second.astype(np.int64)]


def _joined(words: Sequence[str]) -> str:
    return " and ".join(words) if words else "everywhere"


def _of_memory(wrong: Mask) -> Iterator[Pattern]:
    """The elements at some positions in memory order."""
    flat = wrong.reshape(-1)
    places = _describe(np.flatnonzero(flat).astype(np.int64), flat.size, "memory")
    if places.cost < _LISTED:
        yield _pattern(wrong, wrong, places.words, places.cost + 0.5)


def _of_diagonals(wrong: Mask) -> Iterator[Pattern]:
    """Above, on or below the diagonal of the last two axes, like an attention mask."""
    rows, columns = np.indices(wrong.shape[-2:])
    for words, plane in (
        ("above the diagonal", columns > rows),
        ("below the diagonal", columns < rows),
        ("on the diagonal", columns == rows),
        ("on and above the diagonal", columns >= rows),
        ("on and below the diagonal", columns <= rows),
    ):
        if plane.any() and min(wrong.shape[-2:]) > 2:
            box = np.broadcast_to(plane, wrong.shape)
            yield _pattern(wrong, box, f"{words} of the last two axes", 2.5)


def _describe(indices: NDArray[np.int64], extent: int, where: str) -> _Places:
    """The simplest description of exactly these indices out of ``range(extent)``."""
    count = indices.size
    along = f"along {where}" if where != "memory" else "in memory order"
    if count == extent:
        return _Places(indices, "", 0.0)
    first, last = int(indices[0]), int(indices[-1])
    if last - first + 1 == count:
        return _Places(indices, *_run(first, last, extent, along))
    steps = np.diff(indices)
    step = int(steps[0])
    if count > 2 and (steps == step).all() and first < step and last + step >= extent:
        return _Places(indices, f"every {ordinal(step)} {along}, from {first} on", 2.0)
    periodic = _period(indices, extent)
    if periodic is not None:
        period, residues = periodic
        words = ", ".join(map(str, residues))
        return _Places(indices, f"the indices {words} modulo {period} {along}", 3.0)
    return _Places(indices, f"{_ranges(indices)} of 0..{extent - 1} {along}", _LISTED)


def _run(first: int, last: int, extent: int, along: str) -> tuple[str, float]:
    """Description and cost of consecutive indices."""
    count = last - first + 1
    if last == extent - 1:
        blocks = [block for block in _BLOCKS if count < block < extent and extent % block == count]
        beyond = ""
        if blocks:
            shown = " or ".join(map(str, blocks[:3]))
            beyond = f", the part beyond the last full multiple of {shown}"
        which = "the last" if count == 1 else f"the last {count}"
        return f"{which} of {extent} {along} (from {first} on{beyond})", 1.0
    if count == 1:
        return f"only index {first} of 0..{extent - 1} {along}", 1.5
    if first == 0:
        aligned = ", a full block" if count in _BLOCKS else ""
        return f"the first {count} of {extent} {along}{aligned}", 1.2
    whole = count in _BLOCKS and not first % count
    aligned = f", block {first // count} of {count} each" if whole else ""
    return f"{first}..{last} of 0..{extent - 1} {along}{aligned}", 2.2


def _period(indices: NDArray[np.int64], extent: int) -> tuple[int, list[int]] | None:
    """The shortest period of the indices, and the residues; at least two periods long."""
    present = np.zeros(extent, np.bool_)
    present[indices] = True
    longest = 0 if extent > _LONGEST_FOR_PERIODS else min(_LONGEST_PERIOD, extent // 2)
    for period in range(2, longest + 1):
        full = extent // period * period
        rows = present[:full].reshape(-1, period)
        if (rows == rows[0]).all() and (present[full:] == rows[0, : extent - full]).all():
            residues = [int(i) for i in np.flatnonzero(rows[0])]
            return (period, residues) if len(residues) <= _RUNS else None
    return None


def ordinal(number: int) -> str:
    """A number from 2 on as an ordinal.

    >>> ordinal(2), ordinal(21), ordinal(112)
    ('second', '21st', '112th')
    """
    if number in (2, 3):
        return ("second", "third")[number - 2]
    last = 0 if number // 10 % 10 == 1 else number % 10
    return str(number) + {1: "st", 2: "nd", 3: "rd"}.get(last, "th")


def _ranges(places: NDArray[np.int64]) -> str:
    """Sorted indices as ``3, 5..7, 9``."""
    runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
    texts = [str(r[0]) if len(r) == 1 else f"{r[0]}..{r[-1]}" for r in runs[:_RUNS]]
    more = f" and {len(runs) - _RUNS} more runs" if len(runs) > _RUNS else ""
    return ", ".join(texts) + more


def _pattern(wrong: Mask, box: Mask, words: str, cost: float) -> Pattern:
    count, held = int(wrong.sum()), int((wrong & box).sum())
    size = int(box.sum())
    dense = held / max(1, size)
    text = f"{count} of {wrong.size} elements are wrong: {words}"
    if dense < EXPLAINED:
        text += f"; {100 * dense:.0f} % of the elements there"
    if held < count:
        text += f"; {count - held} are elsewhere"
    return Pattern(text, cost, held / count, dense)


def _spread(wrong: Mask) -> str:
    """The elements if they are few; otherwise the number of indices along each axis."""
    if wrong.sum() <= _RUNS:
        return "at " + ", ".join(str([int(i) for i in index]) for index in np.argwhere(wrong))
    texts = []
    for axis, extent in enumerate(wrong.shape):
        others = tuple(other for other in range(wrong.ndim) if other != axis)
        hit = int((wrong.any(axis=others)).sum())
        texts.append(f"at {hit} of {extent} indices of axis {axis}")
    return ", ".join(texts)


# Chance of such a split if the values are unrelated.
_CHANCE: Final = 1e-3


def describe_values(
    name: str, wrong: NDArray[np.bool_], inputs: Mapping[str, NDArray[Any]]
) -> list[str]:
    """Sentences about inputs whose value alone determines which elements of an output are wrong.

    Parameters
    ----------
    name
        The output.
    wrong
        Mask of its wrong elements.
    inputs
        Inputs by name; those that do not broadcast to the output's shape are ignored.
    """
    found = []
    count = int(wrong.sum())
    if not 0 < count < wrong.size or _ways(wrong.size, count) < 1 / _CHANCE:
        return []
    for parameter, values in inputs.items():
        if values.size < 2 or values.dtype == np.bool_ or not _broadcasts(values, wrong):
            continue
        seen = np.broadcast_to(values, wrong.shape).astype(np.float64)
        for shown, numbers in ((parameter, seen), (f"|{parameter}|", np.abs(seen))):
            words = _split(shown, numbers, wrong)
            if words:
                found.append(f"{name}: wrong exactly where {words}")
                break
    return found


def _ways(elements: int, count: int) -> float:
    """Number of ways to choose `count` of `elements`, at most 1e300."""
    few = min(count, elements - count)
    logarithm = sum(math.log((elements - i) / (i + 1)) for i in range(min(few, 60)))
    return math.exp(min(logarithm, 690.0))


def _broadcasts(values: NDArray[Any], wrong: NDArray[np.bool_]) -> bool:
    if values.ndim > wrong.ndim:
        return False
    shapes = zip(reversed(values.shape), reversed(wrong.shape), strict=False)
    return all(mine in (1, whole) for mine, whole in shapes)


def _split(shown: str, numbers: NDArray[np.float64], wrong: NDArray[np.bool_]) -> str:
    """The bound that separates wrong from right elements; empty if there is none."""
    finite = np.isfinite(numbers)
    bad, good = numbers[wrong & finite], numbers[~wrong & finite]
    if not bad.size or not good.size:
        return ""
    if bad.min() > good.max():
        return f"{shown} is at least {bad.min():.6g} (elsewhere it is at most {good.max():.6g})"
    if bad.max() < good.min():
        return f"{shown} is at most {bad.max():.6g} (elsewhere it is at least {good.min():.6g})"
    return ""

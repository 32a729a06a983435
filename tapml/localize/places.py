"""Where in a tensor the wrong elements lie: rows, a tail, a stride, a block, or scattered.

A pattern is a set of elements that a sentence describes. It is told where it holds nearly all wrong
elements and nearly nothing else; of several the simplest comes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]

EXPLAINED: Final = 0.99
_DENSE: Final = 0.75
_BLOCKS: Final = tuple(2**power for power in range(1, 11))
_LONGEST_PERIOD: Final = 64
# Longer ones are not searched for periods: each one tried reads all of it.
_LONGEST_FOR_PERIODS: Final = 1 << 20
_RUNS: Final = 6
_MOST: Final = 2
# The cost of indices that are listed one by one.
_LISTED: Final = 4.0


@dataclass(frozen=True)
class Pattern:
    """A described set of elements.

    Attributes
    ----------
    sentence
        What it is, for a person.
    cost
        How complicated: what is simple explains more.
    explained
        Share of the wrong elements that lie in it.
    dense
        Share of it that is wrong.
    """

    sentence: str
    cost: float
    explained: float
    dense: float


def patterns_of(wrong: Mask) -> list[Pattern]:
    """Patterns that hold at least ``EXPLAINED`` of the wrong elements, the simplest first.

    Parameters
    ----------
    wrong
        Which elements are wrong, shape of the output.

    Returns
    -------
    list
        Empty where nothing is wrong. The last resort is *scattered*, with the share.
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
    """A set of indices along one axis, or in memory order, in words."""

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
        # What one in a hundred of the wrong elements lies beside does not hide a pattern.
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
    """The elements at some places in memory order."""
    flat = wrong.reshape(-1)
    places = _describe(np.flatnonzero(flat).astype(np.int64), flat.size, "memory")
    if places.cost < _LISTED:
        yield _pattern(wrong, wrong, places.words, places.cost + 0.5)


def _of_diagonals(wrong: Mask) -> Iterator[Pattern]:
    """Above, on or below the diagonal of the last two axes, as a mask of attention lies."""
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
    """Indices out of ``range(extent)`` in the simplest words that hold exactly them."""
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
        return _Places(indices, f"every {_ordinal(step)} {along}, from {first} on", 2.0)
    periodic = _period(indices, extent)
    if periodic is not None:
        period, residues = periodic
        words = ", ".join(map(str, residues))
        return _Places(indices, f"the indices {words} modulo {period} {along}", 3.0)
    return _Places(indices, f"{_ranges(indices)} of 0..{extent - 1} {along}", _LISTED)


def _run(first: int, last: int, extent: int, along: str) -> tuple[str, float]:
    """Words and cost of consecutive indices."""
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
    """The shortest period that the indices have, and the residues; at least two periods long."""
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


def _ordinal(number: int) -> str:
    return {2: "second", 3: "third"}.get(number, f"{number}th")


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
        text += f"; {count - held} lie elsewhere"
    return Pattern(text, cost, held / count, dense)


def _spread(wrong: Mask) -> str:
    """The elements themselves where they are few; at how many indices of each axis otherwise."""
    if wrong.sum() <= _RUNS:
        return "at " + ", ".join(str([int(i) for i in index]) for index in np.argwhere(wrong))
    texts = []
    for axis, extent in enumerate(wrong.shape):
        others = tuple(other for other in range(wrong.ndim) if other != axis)
        hit = int((wrong.any(axis=others)).sum())
        texts.append(f"at {hit} of {extent} indices of axis {axis}")
    return ", ".join(texts)

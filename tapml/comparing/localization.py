"""Where two backends part: the localization map's numbers (CRADLE, section III-C), and suspects.

The published rule highlights the third quartile of R_L. It also highlights rounding noise, so a
suspect must besides grow by a factor and exceed a floor, and is then replayed alone on equal
inputs: what agrees there only amplifies what came in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tapml.backends.runner import Array, Node

EPSILON: Final = 1e-7
"""The smoothing constant of equation 6."""
FLOOR: Final = 1e-5
"""A deviation below this share of the activation's scale is rounding."""
GROWTH: Final = 10.0
"""A suspect's least R_L."""
LARGEST: Final = 1e-3
"""A single element that is off by this share of the largest is no rounding."""
_HALF: Final = 2.0**-8
_BRAIN: Final = 2.0**-7
"""How far rounding to float16 and bfloat16 carries: some libraries also sum in float16."""
_CODE: Final = 2.0**-7
"""The same of codes of 8 bits: where a value lies between two, each library takes its own."""
CODES: Final = frozenset(map(np.dtype, (np.int8, np.uint8)))
_UNITS: Final = 4.0
"""A single element may be off by so many of them."""
_SAMPLED: Final = 4096
_FEWEST: Final = 4
"""Values that tell what an array is rounded to."""


@dataclass(frozen=True)
class NodeDeviation:
    """A node of the execution deviation graph.

    Attributes
    ----------
    node
        The node.
    deviation
        delta, the mean absolute deviation of its outputs (equation 3); infinite where one side has
        NaN or another shape.
    scale
        The root mean square of its outputs, of the larger side.
    rate
        R_L (equation 6).
    highlighted
        Whether R_L is above the third quartile, as published.
    deviates
        Whether the deviation is more than rounding.
    suspect
        Whether it is highlighted, deviates and grew.
    unit
        How far rounding carries outputs of 16 or 8 bits; else 0.
    """

    node: Node
    deviation: float
    scale: float
    rate: float
    highlighted: bool
    deviates: bool
    suspect: bool
    unit: float = 0.0


def deviation_of(first: Sequence[Array], second: Sequence[Array]) -> tuple[float, float, float]:
    """(mean absolute deviation, scale, largest deviation over the largest magnitude)."""
    if [each.shape for each in first] != [each.shape for each in second]:
        return np.inf, 0.0, np.inf
    one, other = (
        np.concatenate([np.ravel(np.abs(each) if each.dtype.kind == "c" else each) for each in side]
                       or [np.zeros(0)]).astype(np.float64)
        for side in (first, second)
    )  # fmt: skip
    if not one.size:
        return 0.0, 0.0, 0.0
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        gap = np.where(same, 0.0, np.abs(one - other))
    if not np.isfinite(gap).all():
        return np.inf, 0.0, np.inf
    finite = np.isfinite(one)
    magnitudes = np.maximum(np.abs(one[finite]), np.abs(other[finite]))
    if not magnitudes.size:
        return 0.0, 0.0, 0.0
    scale = float(np.sqrt(np.mean(magnitudes**2)))
    largest = float(magnitudes.max())
    return float(gap.mean()), scale, float(gap.max() / largest) if largest else 0.0


def unit_of(*sides: Sequence[Array]) -> float:
    """How far rounding carries the coarsest array of 16 or 8 bits; 0 without one.

    Whole numbers of 8 bits are codes of a quantized model. A bfloat16 that became float32 is known
    by its bits, which all sides must have: beside one of full float32 the other computes more
    coarsely than the model asks.

    Examples
    --------
    >>> unit_of([np.ones(3, np.float16)])
    0.00390625
    """
    dtypes = {each.dtype for side in sides for each in side}
    half, code = np.dtype(np.float16) in dtypes, not dtypes.isdisjoint(CODES)
    brain = any(map(_are_brain, zip(*sides, strict=False)))
    return max(_BRAIN * brain, _HALF * half, _CODE * code)


def _are_brain(arrays: Sequence[Array]) -> bool:
    # Of all sides together, as a bias of three classes has few values.
    some = np.unique(np.concatenate([_fractions(each) for each in arrays]))
    return len(some) >= _FEWEST and not (some.view(np.uint32) & 0xFFFF).any()


def _fractions(array: Array) -> Array:
    """Values that are no whole numbers, of a sample; of another dtype there are none."""
    if array.dtype != np.float32:
        return np.zeros(0, np.float32)
    some: Array = np.ascontiguousarray(np.ravel(array)[:_SAMPLED])
    fractions: Array = some[np.isfinite(some) & (some != np.trunc(some))]
    return fractions


def is_rounding(relative: float, units: Sequence[float]) -> bool:
    """Whether outputs may be so far apart where nodes of these units round one after the other."""
    low = [each for each in units if each]
    return bool(low) and relative <= _UNITS * max(low) * len(low) ** 0.5


def is_beyond_rounding(first: Sequence[Array], second: Sequence[Array]) -> bool:
    """Whether two results of one node on equal inputs differ by more than rounding."""
    return _is_beyond(*deviation_of(first, second), unit_of(first, second))


def is_taken_otherwise(first: Sequence[Array], second: Sequence[Array]) -> bool:
    """Whether what reads them may fail on one of them alone.

    They have another shape, other whole numbers, such as places, or NaN and Inf elsewhere.
    """
    if [each.shape for each in first] != [each.shape for each in second]:
        return True
    return any(
        (one.dtype.kind in "biu" and not np.array_equal(one, other))
        or not np.array_equal(np.isfinite(one), np.isfinite(other))
        for one, other in zip(first, second, strict=True)
    )


def _is_beyond(deviation: float, scale: float, largest: float, unit: float) -> bool:
    return deviation > max(FLOOR, unit) * scale or largest > max(LARGEST, _UNITS * unit)


def deviations(
    nodes: Sequence[Node],
    first: Mapping[str, Sequence[Array]],
    second: Mapping[str, Sequence[Array]],
) -> list[NodeDeviation]:
    """The execution deviation graph; nodes that one side fused away are left out.

    Parameters
    ----------
    nodes
        In an order in which they can be run.
    first, second
        The hidden states on the two backends, by node.
    """
    measured: dict[str, tuple[float, float, float]] = {}
    units: dict[str, float] = {}
    before: dict[str, float] = {}
    rates: dict[str, float] = {}
    for node in nodes:
        inbound = max((before.get(name, 0.0) for name, _ in node.sources), default=0.0)
        if node.name not in first or node.name not in second:
            before[node.name] = inbound
            continue
        found = deviation_of(first[node.name], second[node.name])
        measured[node.name] = found
        units[node.name] = unit_of(first[node.name], second[node.name])
        before[node.name] = found[0]
        growth = 0.0 if found[0] == inbound else found[0] - inbound
        rates[node.name] = growth / (inbound + EPSILON) if np.isfinite(inbound) else 0.0
    finite = [each for each in rates.values() if np.isfinite(each)]
    quartile = float(np.quantile(finite, 0.75)) if finite else 0.0
    result = []
    for node in nodes:
        if node.name not in measured:
            continue
        deviation, scale, largest = measured[node.name]
        rate = rates[node.name]
        # In a model of a few nodes, the guilty one may be the quartile itself.
        highlighted = rate > quartile or (len(rates) < 4 and rate == max(rates.values()))
        unit = units[node.name]
        deviates = _is_beyond(deviation, scale, largest, unit)
        suspect = highlighted and deviates and rate > GROWTH
        result.append(
            NodeDeviation(node, deviation, scale, rate, highlighted, deviates, suspect, unit)
        )
    return result


def replay_order(graph: Sequence[NodeDeviation], most: int) -> list[NodeDeviation]:
    """The nodes to replay alone: suspects first, then what else deviates, each in graph order."""
    suspects = [each for each in graph if each.suspect]
    others = [each for each in graph if each.deviates and not each.suspect]
    return [*suspects, *others][:most]


def read_places(nodes: Sequence[Node], outputs: Collection[str]) -> dict[str, set[int]]:
    """The outputs that nodes read or the model gives, by the node; of others all count.

    Nothing is left out where an output of the model has no node's name: it may be any.
    """
    names = {node.name for node in nodes}
    read: dict[str, set[int]] = {}
    for name, place in (source for node in nodes for source in node.sources):
        read.setdefault(name, set()).add(place)
    for output in outputs:
        whole, _, number = output.rpartition(":")
        if output in names:
            read.setdefault(output, set()).add(0)
        elif whole in names and number.isdecimal():
            read.setdefault(whole, set()).add(int(number))
        else:
            return {}
    return read


def in_32_bits(array: Array) -> Array:
    """A constant with the ends of 32 bits: "up to the end" is the largest number of 64 or 32."""
    if array.dtype.kind not in "iu" or array.itemsize < 8:
        return array
    ends = np.iinfo(np.int32)
    return np.clip(array, ends.min, ends.max)


def is_another(
    alone: Sequence[Array] | None, among: Sequence[Array] | None, place: int, count: int
) -> bool:
    """Whether an instance's output is another among `count` instances."""
    if not alone or not among:
        return False
    by_instance = among[0].shape[:1] == (count,)
    own = among[0][place : place + 1] if by_instance else among[0]
    return is_beyond_rounding(alone[:1], [own])


def minority(
    results: Mapping[str, Sequence[Array] | None],
    apart: Callable[[Sequence[Array], Sequence[Array]], bool] = is_beyond_rounding,
) -> list[str]:
    """The backends that differ from a majority of at least two; empty without a strict majority.

    Parameters
    ----------
    results
        What each backend made of equal inputs; None for one that failed.
    apart
        Whether two results are unlike.
    """
    groups: list[list[str]] = []
    for name, outputs in results.items():
        for group in groups:
            other = results[group[0]]
            if outputs is not None and other is not None and not apart(outputs, other):
                group.append(name)
                break
        else:
            groups.append([name])
    largest = max(groups, key=len, default=[])
    if len(largest) < 2 or 2 * len(largest) <= len(results):
        return []
    return [name for name in results if name not in largest]


def outvoted(
    results: Mapping[str, Sequence[Array] | None],
    backends: tuple[str, str],
    apart: Callable[[Sequence[Array], Sequence[Array]], bool] = is_beyond_rounding,
) -> str:
    """The backend of a pair that a majority disagrees with, see :func:`minority`; or nothing."""
    found = [name for name in minority(results, apart) if name in backends]
    return found[0] if len(found) == 1 else ""
